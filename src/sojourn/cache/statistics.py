"""Counting one pool's pages by class of account: the identity every report and metric is made from."""

from sojourn.cache.protocol import CacheStatistics
from sojourn.core.ids import AccountId
from sojourn.core.step import Pool
from sojourn.pages.accounts import RESERVED
from sojourn.pages.holding import Holding, HoldingBook, HoldingState


def count_pages(book: HoldingBook, tree: AccountId | None, evictable: tuple[int, ...]) -> tuple[CacheStatistics, ...]:
    """Each class is counted from its own side: the ledger's balances, and what the open holdings list as their own."""
    live = book.pages_own(h for h in book.holdings.values() if h.state is HoldingState.LIVE)
    idle = book.pages_own(h for h in book.holdings.values() if h.state is HoldingState.IDLE)
    return tuple(
        CacheStatistics(
            ledger.pool,
            free=ledger.num_free,
            fenced=ledger.num_fenced,
            reserved=ledger.balance(RESERVED),
            tree=0 if tree is None else ledger.balance(tree),
            running=live[index],
            idle=idle[index],
            total=ledger.num_pages,
            evictable=evictable[index],
        )
        for index, ledger in enumerate(book.ledgers)
    )


def pages_of(book: HoldingBook | None, holding: Holding | None) -> dict[Pool, tuple[int, int]]:
    """(own, leased) pages of a holding in each pool of its book. O(history)."""
    pools = () if book is None else tuple(ledger.pool for ledger in book.ledgers)
    if holding is None:
        return dict.fromkeys(pools, (0, 0))
    counts = zip(holding.pages_own(), holding.pages_held(), strict=True)
    return {pool: (own, held - own) for pool, (own, held) in zip(pools, counts, strict=True)}
