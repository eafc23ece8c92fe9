"""A tier over a page store: offers it what leaves the tree, and brings back what a waiting request could reuse.

Nobody is blocked: a fetch goes on while others run, a few at a time, and one that takes longer than computing would, or
that fails, is given up and counted; the request then computes. Everything here runs on the engine's thread; the store
reads and writes elsewhere. Time is given.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from sojourn.cache.node import Node
from sojourn.cache.protocol import CacheKey, CacheRequest, Kept, Room, Terms
from sojourn.cache.tiers import Ground
from sojourn.cache.tiers_back import Fetcher
from sojourn.cache.tiers_copy import Copier
from sojourn.cache.tiers_names import Namer, joined
from sojourn.cache.tiers_spill import Prices, Spill
from sojourn.core.clock import Clock
from sojourn.core.step import Pool, TokenArray
from sojourn.core.tier import KvNames, KvPages, PageStore, TierStatistics
from sojourn.pages.holding import Holding
from sojourn.pages.sizing import PoolLayout


class StoreTier:
    """Implements `cache.tiers.Tier`. `identity` is the model's: its configuration and its weights."""

    def __init__(
        self,
        store: PageStore,
        kv: KvPages,
        identity: bytes,
        layout: PoolLayout,
        clock: Clock,
        seconds_per_token: Callable[[], float | None],
        *,
        writes_ahead: bool = False,
    ) -> None:
        self._store = store
        prices = Prices(store, seconds_per_token)
        namer = Namer(joined(identity, kv.kv_format.encode()), layout.page_size)
        self._spill = Spill(store, kv, namer, prices, layout)
        self._copier = Copier(store, kv, namer, prices, layout, clock)
        self._fetcher = Fetcher(store, kv, namer, prices, layout, clock)
        self._writes_ahead = writes_ahead

    # -- leaving
    def leaves(self, leaf: Node, count: int) -> None:
        self._spill.leaves(leaf, count)

    def loses_windows(self, node: Node, which: NDArray[np.intp]) -> None:
        self._spill.loses_windows(node, which)

    def loses_tail(self, key: CacheKey, tokens: TokenArray, holding: Holding, *, waits: bool) -> None:
        self._spill.loses_tail(key, tokens, holding, waits=waits)

    def save(self, leaves: Iterable[Node], is_late: Callable[[], bool]) -> None:
        self._spill.save(leaves, is_late)

    def clear(self) -> None:
        self._store.clear()

    # -- staying
    def copy_ahead(self, kept: Kept, *, is_busy: bool) -> float | None:
        return self._copier.ahead(kept, is_busy=is_busy) if self._writes_ahead else None

    def copy_out(self, ground: Ground, key: CacheKey, tokens: TokenArray, holding: Holding | None) -> KvNames | None:
        return self._copier.out(ground, key, tokens, holding) if self._store.statistics().is_open else None

    def kv_names(self, key: CacheKey, tokens: TokenArray, num_pages: int, tail_len: int) -> KvNames | None:
        if not self._store.statistics().is_open:
            return None
        return self._copier.names(key, tokens, num_pages, tail_len)

    def take_copy(self, pool: Pool, name: bytes, data: bytes) -> bool:
        return self._store.put(pool, name, data)

    # -- coming back
    def is_fetching(self, ground: Ground, request: CacheRequest, terms: Terms | None, room: Room) -> bool:
        return self._fetcher.is_fetching(ground, request, terms, room)

    def tail_of(self, key: CacheKey, tokens: TokenArray, prefix_max: int) -> tuple[int, int] | None:
        return self._fetcher.tail_of(key, tokens, prefix_max)

    def admitted(self, ground: Ground, request: CacheRequest, prefix_max: int) -> None:
        self._fetcher.admitted(ground, request, prefix_max)

    def statistics(self) -> TierStatistics | None:
        spill, fetcher = self._spill, self._fetcher
        return TierStatistics(
            store=self._store.statistics(),
            offered=spill.offered,
            known=spill.known,
            declined=spill.declined + fetcher.declined + self._copier.declined,
            ahead=self._copier.copied,
            dropped=spill.dropped,
            refused=spill.refused,
            fetches=fetcher.fetches,
            fetched_pages=fetcher.fetched_pages,
            fetched_tokens=fetcher.fetched_tokens,
            failed=fetcher.failed,
            slow=fetcher.slow,
            lost=fetcher.lost,
        )
