"""Bringing pages into a tree whose KV somebody computed before: free pages become the tree's, are filled, and are hung up.

In one call, so that at no moment a page is anybody's but the free list's or the tree's. Knows no files and no requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from sojourn.cache.node import Match, Node
from sojourn.cache.tree import Tree
from sojourn.core.ids import NULL_PAGE, AccountId
from sojourn.core.step import PageArray, Pool, TokenArray
from sojourn.pages.holding import HoldingBook

BoolArray = NDArray[np.bool_]
Fill = Callable[[Pool, NDArray[np.intp], PageArray], None]  # pages of a pool take the content of these indices


class Landing(Enum):
    DONE = "done"
    LATER = "later"  # pages are short now
    LOST = "lost"  # the tree no longer has what comes before


@dataclass(frozen=True, slots=True, eq=False)
class Cargo:
    """KV of pages `[first, len(tokens) / page size)`. Full pages from `full_from` on; window pages where `windows` says."""

    namespace: str
    tokens: TokenArray  # from position 0 on, whole pages
    first: int
    full_from: int
    windows: BoolArray


def land(
    tree: Tree,
    book: HoldingBook,
    account: AccountId,
    cargo: Cargo,
    make_room: Callable[[tuple[int, ...]], bool],
    fill: Fill,
) -> Landing:
    """Hang up what of the cargo the tree does not have yet."""
    end = cargo.first + len(cargo.windows)
    path, have = tree.matcher.walk(tree.roots, cargo.namespace, cargo.tokens, end)
    if have < cargo.full_from:
        return Landing.LOST
    lease = tree.lend(cargo.namespace, Match(tuple(path), have))  # what comes before is not evicted for it
    try:
        node = lease.node
        windows = cargo.windows & ~_live(node, cargo.first, end)
        wanted = (end - have, int(np.count_nonzero(windows)))[: len(book.ledgers)]
        if not make_room(wanted):
            return Landing.LATER
        full = book.ledgers[Pool.FULL].allocate(account, end - have)
        fill(Pool.FULL, np.arange(have, end), full)
        swa = np.zeros(0, dtype=np.int32)
        if len(book.ledgers) > 1:
            swa = np.full(len(windows), NULL_PAGE, dtype=np.int32)
            which = np.flatnonzero(windows)
            swa[which] = book.ledgers[Pool.SWA].allocate(account, len(which))
            fill(Pool.SWA, which + cargo.first, swa[which])
        _hang(tree, node, cargo, full, swa)
        return Landing.DONE
    finally:
        tree.take_back(lease)


def _live(node: Node, first: int, end: int) -> BoolArray:
    """Of pages `[first, end)` above the end of `node`: those whose window page is there."""
    live = np.zeros(end - first, dtype=np.bool_)
    above: Node | None = node
    while above is not None and above.end > first and len(above.swa):
        skip = max(first - above.start, 0)
        live[above.start + skip - first : above.end - first] = above.swa[skip:] != NULL_PAGE
        above = above.parent
    return live


def _hang(tree: Tree, node: Node, cargo: Cargo, full: PageArray, swa: PageArray) -> None:
    """Tombstones above the end of `node` are filled; what is past it becomes a leaf."""
    first, have, size = cargo.first, node.end, tree.layout.page_size
    above: Node | None = node
    while above is not None and above.end > first and len(swa):
        skip = max(first - above.start, 0)
        tree.fill(above, skip, swa[above.start + skip - first : above.end - first])
        above = above.parent
    if len(full):
        windows = swa[have - first :] if len(swa) else swa
        tree.add_leaf(node, cargo.tokens[have * size :].copy(), full, windows)
    else:
        tree.touch(node)
