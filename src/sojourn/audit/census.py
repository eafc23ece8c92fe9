"""The whole engine's audit: every page has one owner, every owner its pages, and leases are as many as borrowers.

Counts from the owners' side and compares with the ledgers page by page. Cost: O(pages), in numpy.
"""

from dataclasses import dataclass

import numpy as np

from sojourn.audit.checkers import Checker, Claim, HoldingsChecker, LedgerChecker, TreeChecker
from sojourn.cache.protocol import PrefixCache
from sojourn.core.errors import law
from sojourn.core.ids import AccountId, PageId
from sojourn.pages.holding import HoldingBook
from sojourn.pages.ledger import PageLedger, PageOwnerError


@dataclass(frozen=True, slots=True)
class PoolCount:
    """One pool's terms, by checker; they add up to `total`."""

    pool: str
    terms: tuple[tuple[str, int], ...]
    total: int


@dataclass(frozen=True, slots=True)
class Census:
    pools: tuple[PoolCount, ...]
    holdings_running: int
    holdings_idle: int
    leases: int


def census(cache: PrefixCache) -> Census:
    """Raises CorruptionError on the first broken law; returns what was counted."""
    book = cache.book
    audit = cache.audit()
    idle = {holding.account: holding for holding in cache.idle_holdings()}
    for account, holding in idle.items():
        law(book.holdings.get(account) is holding, "%s is kept and not open", holding)
    running = [holding for account, holding in book.holdings.items() if account not in idle]
    for holding in book.holdings.values():
        book.check(holding)
    if audit.account is not None:
        law(audit.leases == len(book.holdings), "%d leases, %d borrowers", audit.leases, len(book.holdings))
    checkers: list[Checker] = [
        LedgerChecker(book.ledgers),
        TreeChecker(audit),
        HoldingsChecker("running", running),
        HoldingsChecker("idle", idle.values()),
    ]
    pools = tuple(_count_pool(book, ledger, checkers) for ledger in book.ledgers)
    return Census(pools, len(running), len(idle), audit.leases)


def _count_pool(book: HoldingBook, ledger: PageLedger, checkers: list[Checker]) -> PoolCount:
    """Lay every claim over the ledger: each page claimed once, by the account that the ledger says owns it."""
    claimed = np.full(ledger.num_pages, -1, dtype=np.int32)
    owners, balances = ledger.owners, ledger.balances()
    terms: list[tuple[str, int]] = []
    for checker in checkers:
        count = 0
        for claim in checker.claims(ledger.pool):
            _check_claim(ledger, claim, claimed)
            claimed[claim.pages] = claim.account
            law(balances.pop(claim.account, 0) == len(claim.pages), "%s: %s claims %d pages, its balance is %d",
                ledger.pool.name, claim.account, len(claim.pages), ledger.balance(claim.account))  # fmt: skip
            count += len(claim.pages)
        terms.append((checker.name, count))
    total = sum(count for _, count in terms)
    if total != ledger.num_pages or not np.array_equal(claimed, owners):
        page = PageId(int(np.flatnonzero(claimed != owners)[0]))
        owner = book.accounts.name(ledger.owner(page))
        raise PageOwnerError(f"{ledger.pool.name} page {page} is {owner}'s, which does not claim it", ledger.pool, page)
    law(not any(balances.values()), "%s: balances of nobody: %s", ledger.pool.name, balances)
    return PoolCount(ledger.pool.name, tuple(terms), total)


def _check_claim(ledger: PageLedger, claim: Claim, claimed: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
    pages, name = claim.pages, ledger.accounts.name
    law(len(pages) == 0 or (pages.min() >= 0 and pages.max() < ledger.num_pages), "%s claims pages that are not",
        claim.account)  # fmt: skip
    before = claimed[pages]
    if (before != -1).any():
        page = PageId(pages[before != -1].item(0))
        first = AccountId(int(claimed[page]))
        raise PageOwnerError(
            f"{ledger.pool.name} page {page} is claimed by {name(first)} and by {name(claim.account)}",
            ledger.pool,
            page,
        )
    wrong = pages[ledger.owners[pages] != claim.account]
    if len(wrong):
        page = PageId(wrong.item(0))
        raise PageOwnerError(
            f"{ledger.pool.name} page {page} is claimed by {name(claim.account)}, but {name(ledger.owner(page))} owns it",
            ledger.pool,
            page,
        )
