"""Copies of what stays: pages of conversations that nobody runs on are given to the store, and the pool keeps them.

    ahead   a little between two steps, for whoever is killed before the pages are given up: only where the store has room
            that nobody else's pages have, and where reading beats computing
    out     what is to leave in a file: whatever of it is in no file of the store is given to it

A page is copied as for an eviction: it is final, a step in flight may read it, and its copy is under its own name.
"""

import numpy as np

from sojourn.cache.protocol import CacheKey, Kept
from sojourn.cache.tiers import Ground
from sojourn.cache.tiers_names import Namer
from sojourn.cache.tiers_spill import Prices
from sojourn.core.clock import Clock
from sojourn.core.ids import NULL_PAGE
from sojourn.core.step import MODEL_POOLS, PageArray, Pool, TokenArray
from sojourn.core.tier import KvNames, KvPages, Names, PageStore
from sojourn.pages.holding import Holding
from sojourn.pages.sizing import PoolLayout

AHEAD_BYTES = 1 << 20  # copied at once, between two steps
BUSY_BYTES = AHEAD_BYTES >> 2  # while requests run; a page at least
OUT_BYTES = 4 << 20
NAMES_MAX = 256  # made between two steps, for pages that turn out to be known
BUSY_PAUSE_S = 0.05  # between two copies while requests run: hashing and writing take a processor from them
QUEUE_PAUSE_S = 0.02  # until the writer is looked at again


class Copier:
    def __init__(
        self, store: PageStore, kv: KvPages, namer: Namer, prices: Prices, layout: PoolLayout, clock: Clock
    ) -> None:
        self._store = store
        self._kv = kv
        self._namer = namer
        self._prices = prices
        self._layout = layout
        self._clock = clock
        self._pools = MODEL_POOLS[: layout.num_pools]
        self._next_at = 0.0
        self.copied = self.declined = 0

    # -- ahead
    def ahead(self, kept: Kept, *, is_busy: bool) -> float | None:
        """As `InnerCache.copy_ahead`."""
        now = self._clock()
        if self._store.num_unwritten():
            return QUEUE_PAUSE_S
        if is_busy and now < self._next_at:
            return self._next_at - now
        if not kept.names and not self._is_worth_it(kept):
            return None
        most = BUSY_BYTES if is_busy else AHEAD_BYTES
        whole, room = kept.holding.kv_committed_len // self._layout.page_size, most
        for _ in range(NAMES_MAX):
            if len(kept.names) == whole or room <= 0:
                break
            taken = self._next_page(kept)
            if taken is None:
                return None
            room -= taken
        self._next_at = now + BUSY_PAUSE_S
        if len(kept.names) < whole:
            return QUEUE_PAUSE_S if room < most else 0.0
        if self._tail(kept) is not None:
            for pool in self._pools:  # a page is of no use without those before it: they go last
                self._store.touch_ahead(pool, tuple(reversed(kept.names)))
        return None

    def _is_worth_it(self, kept: Kept) -> bool:
        """The store has room for it, and reading it would beat computing it."""
        num_bytes = sum(
            int(np.count_nonzero(pages.pages)) * self._kv.page_bytes(pool)
            for pool, pages in zip(self._pools, kept.holding.lists, strict=True)
        )
        is_fit = num_bytes <= self._store.statistics().bytes_max
        if is_fit and self._prices.is_reading_faster(num_bytes, kept.holding.kv_committed_len):
            return True
        self.declined += kept.holding.num_pages
        return False

    def _next_page(self, kept: Kept) -> int | None:
        """Bytes that were copied; None: the store takes no more."""
        size, at = self._layout.page_size, len(kept.names)
        before = kept.names[-1] if kept.names else self._namer.root(kept.key.namespace)
        name = self._namer.tail(before, kept.tokens[at * size : (at + 1) * size])
        taken = self._put_ahead(name, kept.holding, at)
        if taken is not None:
            kept.names.append(name)
        return taken

    def _tail(self, kept: Kept) -> int | None:
        """The page of the last tokens, if it is not whole."""
        length = kept.holding.kv_committed_len
        whole, count = divmod(length, self._layout.page_size)
        if count == 0:
            return 0
        before = kept.names[-1] if kept.names else self._namer.root(kept.key.namespace)
        return self._put_ahead(self._namer.tail(before, kept.tokens[length - count : length]), kept.holding, whole)

    def _put_ahead(self, name: bytes, holding: Holding, at: int) -> int | None:
        taken = 0
        for pool, pages in zip(self._pools, holding.lists, strict=True):
            page = pages.pages[at : at + 1]
            if page[0] == NULL_PAGE or self._store.has(pool, name):
                continue
            if self._kv.page_bytes(pool) > self._store.room_ahead:
                return None  # no need to copy it
            data = self._kv.read_pages(pool, page.copy()).tobytes()
            if not self._store.put_ahead(pool, name, data):
                return None
            self.copied += 1
            taken += len(data)
        return taken

    # -- out
    def out(self, ground: Ground, key: CacheKey, tokens: TokenArray, holding: Holding | None) -> KvNames:
        """As `InnerCache.copy_out`."""
        size, store = self._layout.page_size, self._store
        chain = self._namer.chain(key.namespace, tokens)
        pages = self._in_pool(ground, key, tokens, holding)
        end = len(pages[Pool.FULL])
        while end < len(chain) and store.has(Pool.FULL, chain[end]):
            end += 1
        tail, tail_len = self._tail_out(key, chain[:end], tokens, holding)
        windows_from = self._windows_from(end, tail_len)
        names = self._named(chain[:end], windows_from, tail, tail_len)
        room = OUT_BYTES
        for pool, own in zip(self._pools, pages, strict=True):
            for at in range(windows_from if pool is Pool.SWA else 0, min(end, len(own))):
                room -= self._put(pool, chain[at], own[at : at + 1], room)
        if tail is not None and holding is not None and holding.kv_committed_len == end * size + tail_len:
            for pool, listed in zip(self._pools, holding.lists, strict=True):
                room -= self._put(pool, tail, listed.pages[end : end + 1], room)
        missing = self._missing(names, pages)
        if missing == 0:
            for pool in self._pools:
                store.touch(pool, tuple(reversed(names.full)))
        return self._named(names.full, windows_from, tail, tail_len, missing)

    def names(self, key: CacheKey, tokens: TokenArray, num_pages: int, tail_len: int) -> KvNames:
        """As `InnerCache.kv_names`."""
        size = self._layout.page_size
        chain = self._namer.chain(key.namespace, tokens[: num_pages * size])
        tail = None
        if tail_len:
            before = chain[-1] if chain else self._namer.root(key.namespace)
            tail = self._namer.tail(before, tokens[num_pages * size : num_pages * size + tail_len])
        return self._named(chain, self._windows_from(len(chain), tail_len), tail, tail_len)

    def _windows_from(self, num_pages: int, tail_len: int) -> int:
        """Where the live window behind these tokens begins."""
        length = num_pages * self._layout.page_size + tail_len
        return self._layout.window_first_page(length) if self._layout.window else num_pages

    def _named(self, full: Names, windows_from: int, tail: bytes | None, tail_len: int, missing: int = 0) -> KvNames:
        page_bytes = tuple(self._kv.page_bytes(pool) for pool in self._pools)
        return KvNames(
            self._namer.kv_format, self._layout.page_size, page_bytes, full, windows_from, tail, tail_len, missing
        )

    def _in_pool(
        self, ground: Ground, key: CacheKey, tokens: TokenArray, holding: Holding | None
    ) -> tuple[PageArray, ...]:
        """Whole pages of the tokens per pool, null where a window is gone: the holding's, or else the tree's."""
        size = self._layout.page_size
        if holding is not None:
            whole = min(holding.kv_committed_len, len(tokens)) // size
            return tuple(pages.pages[:whole].copy() for pages in holding.lists)
        tree = ground.tree
        path, have = tree.matcher.walk(tree.roots, key.namespace, tokens, len(tokens) // size)
        parts = ([node.full for node in path], [node.swa for node in path])
        none = np.zeros(0, dtype=np.int32)
        return tuple(np.concatenate([none, *part])[:have] for part in parts[: len(self._pools)])

    def _tail_out(
        self, key: CacheKey, names: Names, tokens: TokenArray, holding: Holding | None
    ) -> tuple[bytes | None, int]:
        """The name of what follows the whole pages, as far as there is KV for it."""
        size, end = self._layout.page_size, len(names)
        before = names[-1] if names else self._namer.root(key.namespace)
        following = tokens[end * size : (end + 1) * size][: size - 1]
        if holding is not None and holding.kv_committed_len // size == end:
            count = min(holding.kv_committed_len - end * size, len(following))
            return (self._namer.tail(before, following[:count]), count) if count else (None, 0)
        for count in range(len(following), 0, -1):
            name = self._namer.tail(before, following[:count])
            if all(self._store.has(pool, name) for pool in self._pools):
                return name, count
        return None, 0

    def _put(self, pool: Pool, name: bytes, page: PageArray, room: int) -> int:
        """Bytes that were copied."""
        if room <= 0 or not page.all() or self._store.has(pool, name):
            return 0
        data = self._kv.read_pages(pool, page.copy()).tobytes()
        return max(1, len(data)) if self._store.put(pool, name, data) else 0

    def _missing(self, names: KvNames, pages: tuple[PageArray, ...]) -> int:
        """Pages that are in the pool or on their way, and in no file."""
        count = 0
        for pool, own in zip(self._pools, pages, strict=True):
            for at in range(names.windows_from if pool is Pool.SWA else 0, len(names.full)):
                is_ours = (at < len(own) and own[at] != NULL_PAGE) or self._store.has(pool, names.full[at])
                count += is_ours and not self._store.is_written(pool, names.full[at])
        if names.tail is not None:
            count += sum(not self._store.is_written(pool, names.tail) for pool in self._pools)
        return count
