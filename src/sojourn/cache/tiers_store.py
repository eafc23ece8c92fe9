"""A tier over a page store: offers it what leaves the tree, and brings back what a waiting request could reuse.

Nobody is blocked: a fetch goes on while others run, a few at a time, and one that takes longer than computing would, or
that fails, is given up and counted; the request then computes. Everything here runs on the engine's thread; the store
reads and writes elsewhere. Time is given.
"""

from collections.abc import Callable, Hashable, Iterable
from weakref import WeakSet, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from sojourn.cache.land import Landing, land
from sojourn.cache.node import Node
from sojourn.cache.protocol import CacheKey, CacheRequest, Kept
from sojourn.cache.tiers import Ground, MakeRoom
from sojourn.cache.tiers_copy import Copier
from sojourn.cache.tiers_fetch import Fetch, Piece, Planner, Wanted, bytes_of, cargo_of, read_ahead
from sojourn.cache.tiers_names import Namer
from sojourn.cache.tiers_spill import Prices, Spill
from sojourn.core.clock import Clock
from sojourn.core.step import PageArray, Pool, TokenArray
from sojourn.core.tier import KvNames, KvPages, PageStore, TierStatistics
from sojourn.pages.holding import Holding
from sojourn.pages.sizing import PoolLayout

FETCHES_MAX = 2  # at a time; others wait for them
LAND_BYTES = 32 << 20  # hung up between two steps
PATIENCE_MIN_S = 0.25  # computing a short prompt takes less, but a disk may have to wake up
PATIENCE_S = 5.0  # where computing was not measured yet


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
        self._kv = kv
        self._clock = clock
        self._layout = layout
        self._prices = Prices(store, seconds_per_token)
        self._namer = Namer(identity + kv.kv_format.encode(), layout.page_size)
        self._spill = Spill(store, kv, self._namer, self._prices, layout)
        self._copier = Copier(store, kv, self._namer, self._prices, layout, clock)
        self._writes_ahead = writes_ahead
        self._active: WeakSet[Fetch] = WeakSet()
        self._tails: WeakValueDictionary[tuple[str, Hashable], Fetch] = WeakValueDictionary()
        self._fetches = self._fetched_pages = self._fetched_tokens = 0
        self._declined = self._failed = self._slow = self._lost = 0

    # -- leaving
    def leaves(self, leaf: Node, count: int) -> None:
        self._spill.leaves(leaf, count)

    def loses_windows(self, node: Node, which: NDArray[np.intp]) -> None:
        self._spill.loses_windows(node, which)

    def loses_tail(self, key: CacheKey, tokens: TokenArray, holding: Holding) -> None:
        self._spill.loses_tail(key, tokens, holding)

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
    def is_fetching(self, ground: Ground, request: CacheRequest, make_room: MakeRoom) -> bool:
        if request.is_fetched:
            return False
        fetch = request.fetch
        if fetch is None:
            wanted = self._plan(ground, request)
            if wanted is None:
                request.is_fetched = True
                return False
            fetch = request.fetch = Fetch(wanted)
        assert isinstance(fetch, Fetch)
        if not fetch.has_begun:
            if len(self._active) >= FETCHES_MAX:
                return True
            self._begin(ground, request, fetch)
        if not fetch.is_over:
            self._advance(ground, request, fetch, make_room)
        request.is_fetched = fetch.is_over
        return not fetch.is_over

    def tail_of(self, key: CacheKey, tokens: TokenArray, prefix_max: int) -> tuple[int, int] | None:
        fetch = None if key.lineage is None else self._tails.get((key.namespace, key.lineage))
        if fetch is None:
            return None
        start, end = fetch.wanted.tail_start, len(fetch.wanted.tokens)
        fits = end <= prefix_max and np.array_equal(tokens[:end], fetch.wanted.tokens)
        return (start, end) if fits else None

    def admitted(self, ground: Ground, request: CacheRequest, prefix_max: int) -> None:
        """As `tail_of` says: the tail is found by its tokens, whoever asked for it first."""
        key, holding = request.key, request.holding
        tail = self.tail_of(key, request.known, prefix_max)
        fetch = self._tails.pop((key.namespace, key.lineage), None)
        request.fetch, request.is_fetched = None, False
        if fetch is None or tail is None or holding is None or holding.kv_committed_len != tail[0]:
            return
        start, end = tail
        index = start // self._layout.page_size
        for pool, pages, rows in zip((Pool.FULL, Pool.SWA), holding.lists, fetch.tail_rows, strict=False):
            self._kv.write_pages(pool, pages.pages[index : index + 1].copy(), rows)
        ground.book.commit(holding, end)
        request.prefix_len = end
        self._fetched_tokens += end - start

    def statistics(self) -> TierStatistics | None:
        spill = self._spill
        return TierStatistics(
            store=self._store.statistics(),
            offered=spill.offered,
            known=spill.known,
            declined=spill.declined + self._declined + self._copier.declined,
            ahead=self._copier.copied,
            fetches=self._fetches,
            fetched_pages=self._fetched_pages,
            fetched_tokens=self._fetched_tokens,
            failed=self._failed,
            slow=self._slow,
            lost=self._lost,
        )

    # -- inside
    def _plan(self, ground: Ground, request: CacheRequest) -> Wanted | None:
        """What is worth fetching for it now."""
        tree, key = ground.tree, request.key
        planner = Planner(self._store, self._namer, tree.matcher, self._layout)
        wanted = planner.plan(tree.roots, key.namespace, request.reusable, with_tail=key.lineage is not None)
        if wanted is None:
            return None
        num_bytes = bytes_of(wanted, self._kv, self._layout.num_pools)
        if not self._prices.is_reading_faster(num_bytes, wanted.num_tokens):
            self._declined += wanted.end - wanted.have
            return None
        return wanted

    def _begin(self, ground: Ground, request: CacheRequest, fetch: Fetch) -> None:
        """Plan again, for it may have waited, and set the time by which computing would have been better."""
        wanted = self._plan(ground, request)
        fetch.has_begun = True
        if wanted is None:
            fetch.is_over = True
            return
        computing = self._prices.computing(wanted.num_tokens)
        fetch.wanted, fetch.next_page = wanted, wanted.first
        fetch.deadline = self._clock() + (PATIENCE_S if computing is None else max(PATIENCE_MIN_S, computing))
        self._active.add(fetch)
        self._fetches += 1
        read_ahead(fetch, self._store, self._kv, self._layout.num_pools)

    def _advance(self, ground: Ground, request: CacheRequest, fetch: Fetch, make_room: MakeRoom) -> None:
        """Hang up what has come, ask for more, and end when all is there or nothing more is to be hoped for."""
        budget = LAND_BYTES
        while budget > 0 and fetch.pieces and fetch.pieces[0].is_done():
            piece = fetch.pieces[0]
            end = piece.good_end()
            if end > piece.first:
                landing = self._land(ground, fetch.wanted, piece, end, make_room)
                if landing is Landing.LATER:
                    break
                if landing is Landing.LOST:
                    self._lost += 1
                    self._end(fetch)
                    return
                request.fetched_from = fetch.wanted.point
            fetch.pieces.popleft()
            fetch.ahead_bytes -= piece.num_bytes
            budget -= piece.num_bytes
            if end < piece.end:
                self._failed += 1
                self._end(fetch)
                return
        read_ahead(fetch, self._store, self._kv, self._layout.num_pools)
        if fetch.is_landed and all(reading.is_done() for reading in fetch.tail):
            self._take_tail(request, fetch)
            self._end(fetch)
        elif self._clock() > fetch.deadline:
            self._slow += 1
            self._end(fetch)

    def _land(self, ground: Ground, wanted: Wanted, piece: Piece, end: int, make_room: MakeRoom) -> Landing:
        places = np.cumsum(piece.windows) - 1  # of a window page among those that were read

        def fill(pool: Pool, which: NDArray[np.intp], pages: PageArray) -> None:
            reading = piece.full if pool is Pool.FULL else piece.swa
            if reading is None or not len(which):
                return
            rows = which - piece.full_from if pool is Pool.FULL else places[which - piece.first]
            self._kv.write_pages(pool, pages, np.ascontiguousarray(reading.rows()[rows]))
            self._fetched_pages += len(pages)

        return land(ground.tree, ground.book, ground.account, cargo_of(wanted, piece, end), make_room, fill)

    def _take_tail(self, request: CacheRequest, fetch: Fetch) -> None:
        rows = tuple(reading.rows() for reading in fetch.tail)
        if not rows:
            return
        if not all(len(one) == 1 for one in rows):
            self._failed += 1
            return
        fetch.tail_rows = rows
        request.fetched_from = fetch.wanted.point
        self._tails[request.key.namespace, request.key.lineage] = fetch

    def _end(self, fetch: Fetch) -> None:
        fetch.is_over = True
        fetch.pieces.clear()
        self._active.discard(fetch)
