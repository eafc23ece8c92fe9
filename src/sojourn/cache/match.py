"""Finding the longest reusable prefix in a radix tree. Pure: nothing here changes a node.

A point is legal where the window before it is live, page by page; an older point may be legal where a later one is not.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from sojourn.cache.node import NO_PAGES, Match, Node
from sojourn.core.ids import NULL_PAGE
from sojourn.core.step import PageArray, TokenArray
from sojourn.pages.sizing import PoolLayout


class Matcher:
    """Reads trees of one layout."""

    def __init__(self, layout: PoolLayout) -> None:
        self._layout = layout

    def match(self, roots: Mapping[str, Node], namespace: str, tokens: TokenArray, pages_max: int) -> Match:
        """The longest run of whole pages, at most `pages_max`, behind which the window is live."""
        path, at = self.walk(roots, namespace, tokens, pages_max)
        if self._layout.window:
            at = self.legal_point(np.concatenate([node.swa for node in path] or [NO_PAGES])[:at])
            while path and path[-1].start >= at:
                path.pop()
        return Match(tuple(path), at)

    def walk(
        self, roots: Mapping[str, Node], namespace: str, tokens: TokenArray, pages_max: int
    ) -> tuple[list[Node], int]:
        """The nodes along `tokens` and how many of their pages there are, at most `pages_max`, whatever their windows."""
        path: list[Node] = []
        node, at = roots.get(namespace), 0
        while node is not None and at < pages_max:
            child = node.children.get(self.key(tokens, at))
            if child is None:
                break
            same = self.common_pages(child, tokens, at, pages_max)
            path.append(child)
            node, at = child, at + same
            if same < child.num_pages:
                break
        return path, at

    def key(self, tokens: TokenArray, at: int) -> bytes:
        size = self._layout.page_size
        return tokens[at * size : (at + 1) * size].tobytes()

    def common_pages(self, child: Node, tokens: TokenArray, at: int, end: int) -> int:
        """Pages of `child`'s edge equal to the tokens from page `at` on, below page `end`."""
        size = self._layout.page_size
        count = min(child.num_pages, end - at)
        differs = child.edge[: count * size] != tokens[at * size : (at + count) * size]
        first = int(differs.argmax())
        return first // size if differs[first] else count

    def legal_point(self, swa: PageArray) -> int:
        """The largest point along these window pages, of which null is dead, whose window is live."""
        at = len(swa)
        ends = np.arange(1, at + 1)
        dead_below = np.maximum.accumulate(np.where(swa == NULL_PAGE, ends, 0))
        size = self._layout.page_size
        needed = np.maximum(0, ends * size - (self._layout.window - 1)) // size
        legal = np.flatnonzero(dead_below <= needed)
        return int(legal[-1]) + 1 if len(legal) else 0

    def is_live(self, path: Sequence[Node], first: int, end: int) -> bool:
        """Whether every window page in `[first, end)` along the path is there."""
        return all(node.swa[max(first - node.start, 0) : max(end - node.start, 0)].all() for node in path)

    def pages_of(self, match: Match) -> tuple[PageArray, ...]:
        """The match's pages per pool; window pages only where the lease will cover them."""
        full = np.concatenate([node.full for node in match.path] or [NO_PAGES])[: match.num_pages]
        if not self._layout.window:
            return (full,)
        swa = np.concatenate([node.swa for node in match.path] or [NO_PAGES])[: match.num_pages]
        swa[: self.window_first(match.num_pages)] = NULL_PAGE
        return full, swa

    def unguarded_pages(self, match: Match) -> tuple[int, ...]:
        """Pages of the match per pool that could be evicted now and could not once it is lent."""
        full = sum(min(n.end, match.num_pages) - n.start for n in match.path if not n.is_guarded)
        if not self._layout.window:
            return (full,)
        first, swa = self.window_first(match.num_pages), 0
        for node in reversed(match.path):
            if node.end <= first:
                break
            part = slice(max(first - node.start, 0), match.num_pages - node.start)
            swa += int(np.count_nonzero((node.swa[part] != NULL_PAGE) & (node.swa_leases[part] == 0)))
        return full, swa

    def window_first(self, num_pages: int) -> int:
        """First window page a lease covers that ends after `num_pages` pages."""
        return self._layout.window_first_page(num_pages * self._layout.page_size) if self._layout.window else num_pages
