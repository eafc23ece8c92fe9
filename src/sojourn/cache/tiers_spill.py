"""Write-back: pages that leave the tree are copied to the store, if reading them again will beat computing them again.

The copy is taken while the page is still the tree's, so a step in flight may read it but nobody writes it. Pages of one
chain go in such an order that the store, which gives up the least recently used, loses the end of a chain first; and what its
queue has no room for is the end, too.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from sojourn.cache.node import Node
from sojourn.cache.protocol import CacheKey
from sojourn.cache.tiers_names import Namer
from sojourn.core.ids import NULL_PAGE
from sojourn.core.step import PageArray, Pool, TokenArray
from sojourn.core.tier import KvPages, Names, PageStore
from sojourn.pages.holding import Holding
from sojourn.pages.sizing import PoolLayout

WAIT_S = 1.0  # for room in the store's queue, a page at a time, where there is time at all


class Prices:
    """What a page costs to read and to compute, both measured; None: not measured yet, and reading is tried."""

    def __init__(self, store: PageStore, seconds_per_token: Callable[[], float | None]) -> None:
        self._store = store
        self._seconds_per_token = seconds_per_token

    def computing(self, num_tokens: int) -> float | None:
        """Seconds that a prompt's tokens take."""
        seconds = self._seconds_per_token()
        return None if seconds is None else seconds * num_tokens

    def is_reading_faster(self, num_bytes: int, num_tokens: int, at_least: float = 0.0) -> bool:
        """`at_least`: seconds per byte, whatever the store has measured."""
        per_byte = max(self._store.statistics().seconds_per_byte or 0.0, at_least)
        computing = self.computing(num_tokens)
        return not per_byte or computing is None or per_byte * num_bytes < computing


class Spill:
    def __init__(self, store: PageStore, kv: KvPages, namer: Namer, prices: Prices, layout: PoolLayout) -> None:
        self._store = store
        self._kv = kv
        self._namer = namer
        self._prices = prices
        self._page_size = layout.page_size
        self._has_windows = layout.window > 0
        self.offered = self.known = self.declined = self.dropped = self.refused = 0

    def leaves(self, leaf: Node, count: int) -> None:
        first = leaf.end - count
        names = self._namer.of_node(leaf)[first:]
        self._offer(Pool.FULL, names, leaf.full[leaf.num_pages - count :])
        if self._has_windows:
            swa = leaf.swa[leaf.num_pages - count :]
            self._offer_live(names, swa)

    def loses_windows(self, node: Node, which: NDArray[np.intp]) -> None:
        names = self._namer.of_node(node)[node.start :]
        self._offer_live(tuple(names[index] for index in which), node.swa[which])

    def loses_tail(self, key: CacheKey, tokens: TokenArray, holding: Holding, *, waits: bool) -> None:
        """Its page is not whole, so the tree cannot have it: it is kept under the name of its tokens."""
        length = holding.kv_committed_len
        index, count = divmod(length, self._page_size)
        if count == 0 or key.lineage is None:
            return
        chain = self._namer.chain(key.namespace, tokens[: index * self._page_size])
        before = chain[-1] if chain else self._namer.root(key.namespace)
        name = self._namer.tail(before, tokens[length - count : length])
        pages = [pages.pages[index : index + 1] for pages in holding.lists]
        if all(page.all() for page in pages):
            for pool, page in zip((Pool.FULL, Pool.SWA), pages, strict=False):
                self._offer(pool, (name,), page, WAIT_S if waits else 0.0)

    def save(self, leaves: Iterable[Node], is_late: Callable[[], bool]) -> None:
        """From the root down, since a page is of no use without those before it."""
        for leaf in leaves:
            names = self._namer.of_node(leaf)
            path: list[Node] = []
            node = leaf
            while node.parent is not None:
                path.append(node)
                node = node.parent
            for node in reversed(path):
                for at in range(node.num_pages):
                    if is_late():
                        return
                    name = names[node.start + at]
                    self._offer(Pool.FULL, (name,), node.full[at : at + 1], WAIT_S)
                    if self._has_windows and node.swa[at] != NULL_PAGE:
                        self._offer(Pool.SWA, (name,), node.swa[at : at + 1], WAIT_S)
            for pool in (Pool.FULL, Pool.SWA)[: 1 + self._has_windows]:
                self._store.touch(pool, names[::-1])

    def _offer_live(self, names: Names, pages: PageArray) -> None:
        live = np.flatnonzero(pages != NULL_PAGE)
        self._offer(Pool.SWA, tuple(names[index] for index in live), pages[live])

    def _offer(self, pool: Pool, names: Names, pages: PageArray, wait_s: float = 0.0) -> None:
        """In the order of the chain. The last named becomes the least recently used of them."""
        store, num_bytes = self._store, self._kv.page_bytes(pool)
        self.offered += len(names)
        new = [index for index, name in enumerate(names) if not store.has(pool, name)]
        if len(new) < len(names):
            self.known += len(names) - len(new)
            store.touch(pool, names[::-1])
        if not new:
            return
        if not self._prices.is_reading_faster(num_bytes, self._page_size):
            self.declined += len(new)
            return
        # Without those before it a page is of no use: so what has room is chosen from the beginning, and put from the end.
        taken = new if wait_s else new[: max(1, store.room // max(1, num_bytes))]
        self._lose(len(new) - len(taken))
        while taken:  # one at a time: the store says when it takes no more, and what follows need not be copied
            index = taken.pop()
            rows = self._kv.read_pages(pool, pages[index : index + 1])
            if not store.put(pool, names[index], rows.tobytes(), wait_s):
                self._lose(len(taken))  # the store has counted this one
                return

    def _lose(self, count: int) -> None:
        if self._store.room or self._store.statistics().is_writable:
            self.dropped += count
        else:
            self.refused += count
