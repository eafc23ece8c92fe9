"""The page identity of each pool, put together from one small checker per kind of owner. Reads everything, changes nothing.

    free + fenced + reserved + tree + running + idle == total

A checker lists the pages of its kind from its own side, with the account that must own each; the census lays them over
the ledger. A new kind of owner brings a checker and joins the formula. Pools are indices into their book's ledgers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sojourn.cache.protocol import CacheAudit
from sojourn.core.errors import law
from sojourn.core.ids import NULL_PAGE, AccountId
from sojourn.core.step import PageArray
from sojourn.pages.accounts import FENCED, FREE, RESERVED
from sojourn.pages.holding import Holding
from sojourn.pages.ledger import PageLedger


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """Pages that one party says are its own."""

    account: AccountId
    pages: PageArray


class Checker(Protocol):
    """One term of the formula."""

    @property
    def name(self) -> str: ...

    def claims(self, pool: int) -> Iterable[Claim]: ...


class LedgerChecker:
    """Pages nobody runs on: the free list, the fence, the null page."""

    name = "ledger"

    def __init__(self, ledgers: Sequence[PageLedger]) -> None:
        self._ledgers = ledgers

    def claims(self, pool: int) -> Iterable[Claim]:
        ledger = self._ledgers[pool]
        yield Claim(FREE, ledger.free_pages())
        yield Claim(FENCED, ledger.fenced_pages())
        yield Claim(RESERVED, np.array([NULL_PAGE], dtype=np.int32))


class TreeChecker:
    """Pages that the prefix cache has published."""

    name = "tree"

    def __init__(self, audit: CacheAudit) -> None:
        self._audit = audit

    def claims(self, pool: int) -> Iterable[Claim]:
        if self._audit.account is not None:
            yield Claim(self._audit.account, self._audit.pages[pool])


class HoldingsChecker:
    """Own pages of holdings, running or idle: what lies above `cache_protected_len` and is not null."""

    def __init__(self, name: str, holdings: Iterable[Holding]) -> None:
        self.name = name
        self._holdings = list(holdings)

    def claims(self, pool: int) -> Iterable[Claim]:
        for holding in self._holdings:
            pages = holding.lists[pool]
            law(pages.live_from <= pages.size and pages.swept <= pages.size, "a window of %s is past its %d pages: %d, %d",
                holding, pages.size, pages.live_from, pages.swept)  # fmt: skip
            own = pages.pages[holding.cache_protected_len // holding.page_size :]
            own = own[own != NULL_PAGE]
            law(len(own) == pages.num_own, "%s lists %d own pages, counts %d", holding, len(own), pages.num_own)
            if len(own):
                yield Claim(holding.account, own)
