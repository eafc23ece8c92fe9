"""The whole engine's audit: every page has one owner, every owner its pages, and leases are as many as borrowers.

Counts from the owners' side and compares with the ledgers page by page. Cost: O(pages), in numpy.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sojourn.audit.checkers import Checker, Claim, HoldingsChecker, LedgerChecker, TreeChecker
from sojourn.cache.protocol import CacheAudit, PrefixCache
from sojourn.core.errors import law
from sojourn.core.ids import AccountId, PageId
from sojourn.pages.holding import Holding, HoldingBook
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
    drafts_running: int = 0
    drafts_idle: int = 0


def census(cache: PrefixCache) -> Census:
    """Raises CorruptionError on the first broken law; returns what was counted."""
    book = cache.book
    audit = cache.audit()
    running, idle = _checked(book, cache.idle_holdings())
    if audit.account is not None:
        law(audit.leases == len(book.holdings), "%d leases, %d borrowers", audit.leases, len(book.holdings))
    checkers: list[Checker] = [
        LedgerChecker(book.ledgers),
        TreeChecker(audit),
        HoldingsChecker("running", running),
        HoldingsChecker("idle", idle),
    ]
    pools = tuple(_count_pool(book, index, checkers) for index in range(len(book.ledgers)))
    drafts_running: list[Holding] = []
    drafts_idle: list[Holding] = []
    if (drafts := cache.draft_book) is not None:
        drafts_running, drafts_idle = _checked(drafts, cache.idle_drafts())
        checkers = [
            LedgerChecker(drafts.ledgers),
            TreeChecker(CacheAudit(None, (), 0)),
            HoldingsChecker("running", drafts_running),
            HoldingsChecker("idle", drafts_idle),
        ]
        pools += (_count_pool(drafts, 0, checkers),)
    return Census(pools, len(running), len(idle), audit.leases, len(drafts_running), len(drafts_idle))


def _checked(book: HoldingBook, kept: Iterable[Holding]) -> tuple[list[Holding], list[Holding]]:
    """Its open holdings, each checked: those that run, and those that are kept."""
    idle = {holding.account: holding for holding in kept}
    for account, holding in idle.items():
        law(book.holdings.get(account) is holding, "%s is kept and not open", holding)
    for holding in book.holdings.values():
        book.check(holding)
    return [holding for account, holding in book.holdings.items() if account not in idle], list(idle.values())


def _count_pool(book: HoldingBook, index: int, checkers: list[Checker]) -> PoolCount:
    """Lay every claim over the ledger: each page claimed once, by the account that the ledger says owns it."""
    ledger = book.ledgers[index]
    by_checker = [(checker.name, list(checker.claims(index))) for checker in checkers]
    claims = [claim for _, of_checker in by_checker for claim in of_checker]
    if not _is_exact(ledger, claims):
        _explain(book, ledger, claims)
    balances = ledger.balances()
    for claim in claims:
        law(balances.pop(claim.account, 0) == len(claim.pages), "%s: %s claims %d pages, its balance is %d",
            ledger.pool.name, claim.account, len(claim.pages), ledger.balance(claim.account))  # fmt: skip
    law(not any(balances.values()), "%s: balances of nobody: %s", ledger.pool.name, balances)
    terms = tuple((name, sum(len(claim.pages) for claim in of_checker)) for name, of_checker in by_checker)
    return PoolCount(ledger.pool.name, terms, ledger.num_pages)


def _is_exact(ledger: PageLedger, claims: list[Claim]) -> bool:
    """As many claims as pages, and every page claimed by its owner: so each is claimed once."""
    pages = np.concatenate([claim.pages for claim in claims])
    if len(pages) != ledger.num_pages or pages.min() < 0 or pages.max() >= ledger.num_pages:
        return False
    claimed = np.full(ledger.num_pages, -1, dtype=np.int32)
    claimed[pages] = np.repeat([claim.account for claim in claims], [len(claim.pages) for claim in claims])
    return bool((claimed == ledger.owners).all())


def _explain(book: HoldingBook, ledger: PageLedger, claims: list[Claim]) -> None:
    """Something does not fit: raise, naming the first page and the parties."""
    claimed = np.full(ledger.num_pages, -1, dtype=np.int32)
    for claim in claims:
        _check_claim(ledger, claim, claimed)
        claimed[claim.pages] = claim.account
        law(len(np.unique(claim.pages)) == len(claim.pages), "%s: %s claims a page twice", ledger.pool.name,
            claim.account)  # fmt: skip
    page = PageId(int(np.flatnonzero(claimed != ledger.owners)[0]))
    owner = book.accounts.name(ledger.owner(page))
    raise PageOwnerError(f"{ledger.pool.name} page {page} is {owner}'s, which does not claim it", ledger.pool, page)


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
