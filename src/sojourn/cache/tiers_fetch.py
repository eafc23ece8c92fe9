"""Load-back: which pages of a prompt the store has and the tree has not, and bringing them in piece by piece.

    tree, in pages     0 ....... have            (tombstones where the window pool let go)
    store              0 ............. end       pages named by the prompt's own chain
    fetched            windows [.., end) that are dead or not there, full pages [have, end), then a tail of < 1 page

The end is the last point a prompt may resume at. Planning is pure; the request owns its fetch, and dropping the request
drops it. Time is given.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from sojourn.cache.land import BoolArray, Cargo
from sojourn.cache.match import Matcher
from sojourn.cache.node import Node
from sojourn.cache.protocol import ALONE, Terms
from sojourn.cache.tiers_names import Namer
from sojourn.core.ids import NULL_PAGE
from sojourn.core.step import Pool, TokenArray
from sojourn.core.tier import KvPages, Names, PageRows, PageStore, Reading
from sojourn.pages.sizing import PoolLayout

PIECE_BYTES = 4 << 20  # read and hung up together
AHEAD_BYTES = 64 << 20  # read for one request and not yet in the tree


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What is to be fetched for one prompt. `names` are of its whole pages up to `end`."""

    namespace: str
    tokens: TokenArray  # up to its end
    page_size: int
    names: Names
    point: int  # tokens that could be resumed on without it
    have: int  # whole pages that the tree has
    end: int  # that it will have
    windows: BoolArray  # of pages [0, end): the window page is fetched
    tail: bytes | None  # the name of a page of which `tail_len` tokens stand
    tail_len: int

    @property
    def first(self) -> int:
        """The first page of which anything is fetched."""
        fetched = np.flatnonzero(self.windows)
        return min(self.have, self.end, int(fetched[0]) if len(fetched) else self.end)

    @property
    def num_tokens(self) -> int:
        """That need not be computed, thanks to it."""
        return len(self.tokens) - self.point

    @property
    def tail_start(self) -> int:
        return self.end * self.page_size


@dataclass(slots=True, eq=False)
class Piece:
    """Pages `[first, end)` being read: full ones from `full_from` on, the windows that are wanted."""

    first: int
    end: int
    full_from: int
    windows: BoolArray
    full: Reading | None
    swa: Reading | None
    num_bytes: int

    def is_done(self) -> bool:
        return all(reading is None or reading.is_done() for reading in (self.full, self.swa))

    def good_end(self) -> int:
        """Where the first page is that did not come."""
        full = 0 if self.full is None else len(self.full.rows())
        end = min(self.end, self.full_from + full) if self.full_from < self.end else self.end
        came = 0 if self.swa is None else len(self.swa.rows())
        missing = np.flatnonzero(self.windows)[came:]
        return min(end, self.first + int(missing[0])) if len(missing) else end


@dataclass(slots=True, eq=False, weakref_slot=True)
class Fetch:
    """Of one request. `tail_rows` (per pool) are there once they were read; their tokens follow page `wanted.end`."""

    wanted: Wanted
    made_at: float
    is_planned: bool  # `wanted` was found in this very pass
    terms: Terms = ALONE  # what its landing leaves to others
    asked: int = 0  # number of the last time that somebody asked for it
    began_at: float = 0.0
    deadline: float = 0.0
    next_page: int = 0
    has_begun: bool = False
    pieces: deque[Piece] = field(default_factory=deque)
    ahead_bytes: int = 0
    came_bytes: int = 0
    tail: tuple[Reading, ...] = ()
    tail_rows: tuple[PageRows, ...] = ()
    reached: int = 0  # pages that the tree had for the request when it was over
    is_over: bool = False

    @property
    def is_landed(self) -> bool:
        """All its whole pages."""
        return self.next_page >= self.wanted.end and not self.pieces


class Planner:
    """Reads tree and store, changes neither."""

    def __init__(self, store: PageStore, namer: Namer, matcher: Matcher, layout: PoolLayout) -> None:
        self._store = store
        self._namer = namer
        self._matcher = matcher
        self._layout = layout
        self._has_windows = layout.window > 0

    def plan(self, roots: dict[str, Node], namespace: str, tokens: TokenArray, *, with_tail: bool) -> Wanted | None:
        """What the store has of `tokens` beyond what can be resumed on, their last one left to compute; None: nothing."""
        size = self._layout.page_size
        most = (len(tokens) - 1) // size
        path, have = self._matcher.walk(roots, namespace, tokens, most)
        point = self._matcher.match(roots, namespace, tokens, most).num_pages
        names = self._namer.chain(namespace, tokens[: most * size])
        end = have
        while end < most and self._store.has(Pool.FULL, names[end]):
            end += 1
        windows = np.zeros(end, dtype=np.bool_)
        tail, tail_len = self._tail(namespace, names, tokens, end) if with_tail else (None, 0)
        if self._has_windows:
            dead = self._dead_windows(path, end)
            windows = dead & np.array([self._store.has(Pool.SWA, name) for name in names[:end]], dtype=np.bool_)
            live = ~dead | windows
            if tail is None or not live[self._layout.window_needed_page(end * size + tail_len) :].all():
                legal = self._matcher.legal_point(np.where(live, 1, NULL_PAGE))
                if legal < end:
                    end, (tail, tail_len) = legal, (None, 0)
            windows = windows[:end]
            windows[: self._matcher.window_first(end)] = False
        if end == point and tail is None:
            return None
        taken = tokens[: end * size + tail_len].copy()
        have = min(have, end)
        return Wanted(namespace, taken, size, names[:end], point * size, have, end, windows, tail, tail_len)

    def _dead_windows(self, path: list[Node], end: int) -> BoolArray:
        """Of pages `[0, end)`: the tree has no window page."""
        dead = np.ones(end, dtype=np.bool_)
        for node in path:
            upto = min(node.end, end)
            if upto > node.start:
                dead[node.start : upto] = node.swa[: upto - node.start] == NULL_PAGE
        return dead

    def _tail(self, namespace: str, names: Names, tokens: TokenArray, end: int) -> tuple[bytes | None, int]:
        """The longest beginning of page `end` that was kept and leaves a token to compute."""
        before = names[end - 1] if end else self._namer.root(namespace)
        following = tokens[end * self._layout.page_size : min((end + 1) * self._layout.page_size, len(tokens)) - 1]
        for count in range(len(following), 0, -1):
            name = self._namer.tail(before, following[:count])
            if self._store.has(Pool.FULL, name) and (not self._has_windows or self._store.has(Pool.SWA, name)):
                return name, count
        return None, 0


def bytes_of(wanted: Wanted, kv: KvPages, num_pools: int) -> int:
    full = wanted.end - wanted.have + (wanted.tail is not None)
    swa = int(np.count_nonzero(wanted.windows)) + (wanted.tail is not None)
    return full * kv.page_bytes(Pool.FULL) + (swa * kv.page_bytes(Pool.SWA) if num_pools > 1 else 0)


def read_ahead(fetch: Fetch, store: PageStore, kv: KvPages, num_pools: int) -> None:
    """Ask for what comes next, as far as may be read ahead."""
    wanted, pools = fetch.wanted, (Pool.FULL, Pool.SWA)[:num_pools]
    page_bytes = sum(kv.page_bytes(pool) for pool in pools)
    count = max(1, PIECE_BYTES // max(page_bytes, 1))
    while fetch.next_page < wanted.end and fetch.ahead_bytes < AHEAD_BYTES:
        first = fetch.next_page
        end = min(first + count, wanted.end if first >= wanted.have else wanted.have)
        full_from = min(max(first, wanted.have), end)
        windows = wanted.windows[first:end]
        names = wanted.names[full_from:end]
        swa_names = tuple(wanted.names[first + int(index)] for index in np.flatnonzero(windows))
        fetch.pieces.append(
            Piece(
                first,
                end,
                full_from,
                windows,
                store.read(Pool.FULL, names, kv.page_bytes(Pool.FULL)) if names else None,
                store.read(Pool.SWA, swa_names, kv.page_bytes(Pool.SWA)) if swa_names else None,
                page_bytes * (end - first),
            )
        )
        fetch.ahead_bytes += page_bytes * (end - first)
        fetch.next_page = end
    if wanted.tail is not None and not fetch.tail and fetch.next_page >= wanted.end:
        fetch.tail = tuple(store.read(pool, (wanted.tail,), kv.page_bytes(pool)) for pool in pools)


def cargo_of(wanted: Wanted, piece: Piece, end: int) -> Cargo:
    """What of the piece is to be hung up: its pages below `end`."""
    windows = piece.windows[: end - piece.first]
    tokens = wanted.tokens[: end * wanted.page_size]
    return Cargo(wanted.namespace, tokens, piece.first, min(piece.full_from, end), windows)
