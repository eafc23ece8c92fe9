"""Fetches as they go on: who waits for the disk, who no longer does, and what has come goes into the tree.

    made ──▶ queued ──▶ begun ──▶ over: landed, or given up and computed      FETCHES_MAX are begun at a time
                          ▲
                          └─ only for somebody who would be admitted now: there is a place for it, and room on its terms

Nobody waits for a disk for longer than computing would take; one who is queued, for a disk that gives nobody anything. Called
on the engine's thread, between two steps; a pass asks each fetch once. Time is given.
"""

from collections.abc import Hashable
from dataclasses import replace
from weakref import WeakSet, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from sojourn.cache.land import Landing, land
from sojourn.cache.protocol import CacheKey, CacheRequest, Room, Terms
from sojourn.cache.tiers import Ground
from sojourn.cache.tiers_fetch import Fetch, Piece, Planner, Wanted, bytes_of, cargo_of, read_ahead
from sojourn.cache.tiers_names import Namer
from sojourn.cache.tiers_spill import Prices
from sojourn.core.clock import Clock
from sojourn.core.step import PageArray, Pool, TokenArray
from sojourn.core.tier import KvPages, PageStore
from sojourn.pages.sizing import PoolLayout

FETCHES_MAX = 2  # at a time; others wait for them
LAND_BYTES = 32 << 20  # hung up between two steps, of all fetches together
PATIENCE_MIN_S = 0.25  # computing a short prompt takes less, but a disk may have to wake up
PATIENCE_S = 5.0  # where computing was not measured yet
SLOW_S = 60.0  # that a slow fetch is remembered, unless another one is not


class Fetcher:
    def __init__(
        self, store: PageStore, kv: KvPages, namer: Namer, prices: Prices, layout: PoolLayout, clock: Clock
    ) -> None:
        self._store = store
        self._kv = kv
        self._namer = namer
        self._prices = prices
        self._layout = layout
        self._clock = clock
        self._active: WeakSet[Fetch] = WeakSet()
        self._tails: WeakValueDictionary[tuple[str, Hashable], Fetch] = WeakValueDictionary()
        self._asked = 0  # times that somebody asked for a fetch
        self._pass_from = 0  # the first of them in this pass
        self._room = LAND_BYTES  # left in this pass
        self._came_at = 0.0  # something of anybody's
        self._is_stalled = False  # the last that was given up was slow, and nothing has come since
        self._slow_rate, self._slow_until = 0.0, 0.0
        self.fetches = self.fetched_pages = self.fetched_tokens = 0
        self.declined = self.failed = self.slow = self.lost = 0

    def is_fetching(self, ground: Ground, request: CacheRequest, terms: Terms | None, room: Room) -> bool:
        """As `Tier.is_fetching`."""
        request.waits_for_tier = self._is_fetching(ground, request, terms, room)
        return request.waits_for_tier

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
        request.fetch, request.is_fetched, request.is_refetched = None, False, False
        if fetch is None or tail is None or holding is None or holding.kv_committed_len != tail[0]:
            return
        start, end = tail
        index = start // self._layout.page_size
        for pool, pages, rows in zip((Pool.FULL, Pool.SWA), holding.lists, fetch.tail_rows, strict=False):
            self._kv.write_pages(pool, pages.pages[index : index + 1].copy(), rows)
        ground.book.commit(holding, end)
        request.prefix_len = end
        self.fetched_tokens += end - start

    # -- who waits
    def _is_fetching(self, ground: Ground, request: CacheRequest, terms: Terms | None, room: Room) -> bool:
        if request.is_fetched and not self._begins_anew(ground, request, terms):
            return False
        fetch = request.fetch
        if fetch is None:
            wanted = None if terms is None else self._plan(ground, request)
            if wanted is None:
                request.is_fetched = terms is not None
                return False
            fetch = request.fetch = Fetch(wanted, made_at=self._clock(), is_planned=True)
        assert isinstance(fetch, Fetch)
        self._note(fetch)
        if not (fetch.has_begun or fetch.is_over):
            if self._is_in_vain(fetch):
                self.slow += 1
                fetch.is_over = True
            elif len(self._active) >= FETCHES_MAX:
                fetch.is_planned = False
                return terms is not None
            elif terms is None or not self._begin(ground, request, fetch, terms, room):
                fetch.is_planned = False
                return False
        if not fetch.is_over:
            self._advance(ground, request, fetch, room)
        if request.fetch is None:  # put off
            return False
        request.is_fetched = fetch.is_over
        if fetch.is_over and request.fetched_from is not None:
            fetch.reached = self._matched(ground, request)
        return not fetch.is_over

    def _note(self, fetch: Fetch) -> None:
        """Who is asked for again begins another pass. One that nobody asked for in the whole pass before is forgotten: its
        request waits behind others, or with too many, and its place at the disk is somebody else's when its time is over.
        """
        self._asked += 1
        if fetch.asked >= self._pass_from:
            self._pass_from, self._room = self._asked, LAND_BYTES
        before, fetch.asked = fetch.asked, self._asked
        for other in [other for other in self._active if other.asked < before and self._clock() > other.deadline]:
            self.slow += 1
            self._end(other)

    def _is_in_vain(self, fetch: Fetch) -> bool:
        """It is queued, and for as long as it would wait nobody has got anything from the disk."""
        if not (self._active or self._is_stalled):
            return False
        return self._clock() - max(fetch.made_at, self._came_at) > self._patience(fetch.wanted)

    def _patience(self, wanted: Wanted) -> float:
        computing = self._prices.computing(wanted.num_tokens)
        return PATIENCE_S if computing is None else max(PATIENCE_MIN_S, computing)

    def _begins_anew(self, ground: Ground, request: CacheRequest, terms: Terms | None) -> bool:
        """What it got was evicted before it was admitted: once it may fetch that again."""
        fetch = request.fetch
        if terms is None or fetch is None or request.is_refetched:
            return False
        assert isinstance(fetch, Fetch)
        if self._matched(ground, request) >= fetch.reached:
            return False
        request.fetch, request.is_fetched, request.is_refetched = None, False, True
        return True

    def _matched(self, ground: Ground, request: CacheRequest) -> int:
        """Pages that the tree has for it."""
        most = (len(request.reusable) - 1) // self._layout.page_size
        return ground.tree.match(request.key.namespace, request.reusable, most).num_pages

    # -- from the store to the tree
    def _plan(self, ground: Ground, request: CacheRequest) -> Wanted | None:
        """What is worth fetching for it now."""
        tree, key = ground.tree, request.key
        planner = Planner(self._store, self._namer, tree.matcher, self._layout)
        wanted = planner.plan(tree.roots, key.namespace, request.reusable, with_tail=key.lineage is not None)
        if wanted is None:
            return None
        num_bytes = bytes_of(wanted, self._kv, self._layout.num_pools)
        at_least = self._slow_rate if self._clock() < self._slow_until else 0.0
        if not self._prices.is_reading_faster(num_bytes, wanted.num_tokens, at_least):
            self.declined += wanted.end - wanted.have
            return None
        return wanted

    def _begin(self, ground: Ground, request: CacheRequest, fetch: Fetch, terms: Terms, room: Room) -> bool:
        """Set the time by which computing would have been better. False: on its terms there is no room for it."""
        wanted = fetch.wanted
        spare = max(0, terms.spare - wanted.tail_start)
        fetch.terms = replace(terms, spare=spare)
        pages = (wanted.end - wanted.have, int(np.count_nonzero(wanted.windows)))[: self._layout.num_pools]
        if not room.could(pages, fetch.terms):
            return False
        if not fetch.is_planned:  # it has waited, and store, tree and prices have not
            planned = self._plan(ground, request)
            if planned is None:
                fetch.is_over = True
                return True
            fetch.wanted = wanted = planned
        now = self._clock()
        if not self._active:
            self._came_at = now
        fetch.has_begun, fetch.next_page = True, wanted.first
        fetch.began_at, fetch.deadline = now, now + self._patience(wanted)
        self._active.add(fetch)
        self.fetches += 1
        read_ahead(fetch, self._store, self._kv, self._layout.num_pools)
        return True

    def _advance(self, ground: Ground, request: CacheRequest, fetch: Fetch, room: Room) -> None:
        """Hang up what has come, ask for more, and end when all is there or nothing more is to be hoped for."""
        is_short = False
        while self._room > 0 and fetch.pieces and fetch.pieces[0].is_done():
            piece = fetch.pieces[0]
            end = piece.good_end()
            if end > piece.first:
                landing = self._land(ground, fetch, piece, end, room)
                if landing is Landing.LATER:
                    is_short = True
                    break
                if landing is Landing.LOST:
                    self.lost += 1
                    self._end(fetch)
                    return
                request.fetched_from = fetch.wanted.point
                self._came_at, self._is_stalled = self._clock(), False
            fetch.pieces.popleft()
            fetch.ahead_bytes -= piece.num_bytes
            fetch.came_bytes += piece.num_bytes
            self._room -= piece.num_bytes
            if end < piece.end:
                self.failed += 1
                self._end(fetch)
                return
        read_ahead(fetch, self._store, self._kv, self._layout.num_pools)
        if fetch.is_landed and all(reading.is_done() for reading in fetch.tail):
            self._take_tail(request, fetch)
            self._came_at, self._is_stalled, self._slow_until = self._clock(), False, 0.0
            self._end(fetch)
        elif self._room > 0 and self._clock() > fetch.deadline:
            self._give_up(request, fetch, is_short=is_short)

    def _give_up(self, request: CacheRequest, fetch: Fetch, *, is_short: bool) -> None:
        """It has taken too long. If that was for want of pages, it may have another try when there are some."""
        self._end(fetch)
        if is_short and not request.is_refetched:
            request.fetch, request.is_refetched = None, True
        elif is_short:
            self.lost += 1
        else:
            self.slow += 1
            self._is_stalled = True
            num_bytes = fetch.came_bytes or bytes_of(fetch.wanted, self._kv, self._layout.num_pools)
            now = self._clock()
            self._slow_rate, self._slow_until = (now - fetch.began_at) / max(1, num_bytes), now + SLOW_S

    def _land(self, ground: Ground, fetch: Fetch, piece: Piece, end: int, room: Room) -> Landing:
        places = np.cumsum(piece.windows) - 1  # of a window page among those that were read

        def fill(pool: Pool, which: NDArray[np.intp], pages: PageArray) -> None:
            reading = piece.full if pool is Pool.FULL else piece.swa
            if reading is None or not len(which):
                return
            rows = which - piece.full_from if pool is Pool.FULL else places[which - piece.first]
            self._kv.write_pages(pool, pages, np.ascontiguousarray(reading.rows()[rows]))
            self.fetched_pages += len(pages)

        def make_room(pages: tuple[int, ...]) -> bool:
            return room.make(pages, fetch.terms)

        cargo = cargo_of(fetch.wanted, piece, end)
        return land(ground.tree, ground.book, ground.account, cargo, make_room, fill)

    def _take_tail(self, request: CacheRequest, fetch: Fetch) -> None:
        rows = tuple(reading.rows() for reading in fetch.tail)
        if not rows:
            return
        if not all(len(one) == 1 for one in rows):
            self.failed += 1
            return
        fetch.tail_rows = rows
        request.fetched_from = fetch.wanted.point
        self._tails[request.key.namespace, request.key.lineage] = fetch

    def _end(self, fetch: Fetch) -> None:
        fetch.is_over = True
        fetch.pieces.clear()
        self._active.discard(fetch)
