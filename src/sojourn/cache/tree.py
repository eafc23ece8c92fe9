"""The radix tree: nodes of several whole pages, split and merged; leases and what they protect.

    root of a namespace ── [system prompt] ─┬─ [turn 1][turn 2] ◀─ lease
                                            └─ [turn 1']                 (a leaf without lease: may be evicted)

A node's edge is its pages' tokens; children are found by the tokens of their first page. A lease is counted on its
node only, at that node's end: a node with children is never evicted, so what is above needs no count. Splitting keeps
the lower half's identity and merging the child's, so a lease's node stays its node.

Whether a lease lies somewhere below (`is_guarded`) is kept up by walks that end at the first node already guarded. Window
pages are lent one by one: a lease counts those behind its end that its holder may read.

Knows tokens and page numbers; moves no page (cache/radix.py does) and knows no requests.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sojourn.cache.evict import USES_MAX, Appraiser, VictimQueue
from sojourn.cache.match import Matcher
from sojourn.cache.node import NO_PAGES, Lease, Match, Node
from sojourn.core.errors import law
from sojourn.core.ids import NULL_PAGE
from sojourn.core.step import PageArray, TokenArray
from sojourn.pages.sizing import PoolLayout


class Tree:
    """Shape and leases of one cache. `swa_queue` and `leaf_queue` order what may be evicted, what is worth least first."""

    def __init__(self, layout: PoolLayout) -> None:
        self.layout = layout
        self.matcher = Matcher(layout)
        self.roots: dict[str, Node] = {}
        self.leases: set[Lease] = set()
        self.num_nodes = 0
        self.num_guarded_pages = 0  # full pages a lease protects
        self.num_swa_pages = 0
        self.num_swa_leased = 0  # of them, covered by a lease
        self.leaf_queue = VictimQueue[Node](_may_lose_tail)
        self.swa_queue = VictimQueue[Node](_may_lose_window)
        self.num_splits = 0
        self.num_merges = 0
        self._appraiser = Appraiser()
        self._tick = 0

    def match(self, namespace: str, tokens: TokenArray, pages_max: int) -> Match:
        """The longest reusable run of whole pages, at most `pages_max`. Pure."""
        return self.matcher.match(self.roots, namespace, tokens, pages_max)

    def reach(self, namespace: str, tokens: TokenArray, pages_max: int) -> int:
        """How many of these pages are kept, whatever became of their windows. Pure."""
        return self.matcher.walk(self.roots, namespace, tokens, pages_max)[1]

    # -- leases
    def lend(self, namespace: str, match: Match) -> Lease:
        """Protect the match until the lease is taken back. Splits its last node if it ends inside."""
        node = match.path[-1] if match.path else self._root(namespace)
        if node.end > match.num_pages:
            node = self._split(node, match.num_pages - node.start)
        node.uses = min(node.uses + 1, USES_MAX)
        return self.lend_node(node)

    def lend_node(self, node: Node) -> Lease:
        lease = Lease(node, self.matcher.window_first(node.end))
        guarded = node.is_guarded
        node.num_leases += 1
        if not guarded:
            self._guard(node)
        self._cover(lease, lease.window_from, node.end, +1)
        self.leases.add(lease)
        self.touch(node)
        return lease

    def take_back(self, lease: Lease) -> None:
        """The only way a lease ends; the node is the one it was lent on, wherever splits and merges moved it."""
        law(not lease.is_returned, "a lease on %s is taken back twice", lease.node)
        law(lease.node.num_leases > 0 and lease.node.is_attached, "%s was not lent", lease.node)
        lease.is_returned = True
        self.leases.remove(lease)
        node = lease.node
        self._cover(lease, lease.window_from, node.end, -1)
        node.num_leases -= 1
        if not node.is_guarded:
            self._unguard(node)
        self.touch(node)
        self.merge(node)
        self._forget_if_empty(node)

    def narrow(self, lease: Lease, window_from: int) -> None:
        """The holder reads no window page below `window_from` any more."""
        first = min(window_from, lease.node.end)
        if first > lease.window_from:
            self._cover(lease, lease.window_from, first, -1)
            lease.window_from = first

    def _cover(self, lease: Lease, first: int, end: int, delta: int) -> None:
        """Count `delta` on the window pages `[first, end)` above the lease's node. Bounded by one window."""
        node: Node | None = lease.node
        while node is not None and node.end > first:
            if node.start < end:
                part = slice(max(first - node.start, 0), min(end, node.end) - node.start)
                counts = node.swa_leases[part]
                edge_count = 0 if delta > 0 else 1  # counts that this change turns from bare to covered, or back
                turning = int(np.count_nonzero((counts == edge_count) & (node.swa[part] != NULL_PAGE)))
                counts += delta
                self.num_swa_leased += delta * turning
                if delta < 0 and turning:
                    self.swa_queue.push(node)
            node = node.parent

    def _guard(self, node: Node) -> None:
        """`node` has just become guarded; so have its ancestors up to the first that was."""
        while True:
            self.num_guarded_pages += node.num_pages
            parent = node.parent
            if parent is None:
                return
            guarded = parent.is_guarded
            parent.num_guarded_children += 1
            if guarded:
                return
            node = parent

    def _unguard(self, node: Node) -> None:
        while True:
            self.num_guarded_pages -= node.num_pages
            parent = node.parent
            if parent is None:
                return
            parent.num_guarded_children -= 1
            if parent.is_guarded:
                return
            node = parent

    def pinned_by(self, leases: set[Lease], match: Match) -> tuple[int, ...]:
        """Pages per pool that these leases protect, or would if `match` were lent too. Walks their paths."""
        seen: set[Node] = set()
        full, windows = 0, []
        for lease in leases:
            node: Node | None = lease.node
            while node is not None and node not in seen:
                seen.add(node)
                full += node.num_pages
                node = node.parent
            node = lease.node
            while node is not None and node.end > lease.window_from:
                windows.append(node.swa[max(lease.window_from - node.start, 0) :])
                node = node.parent
        full += sum(min(n.end, match.num_pages) - n.start for n in match.path if n not in seen)
        if not self.layout.window:
            return (full,)
        first = self.matcher.window_first(match.num_pages)
        windows += [n.swa[max(first - n.start, 0) : match.num_pages - n.start] for n in match.path if n.end > first]
        pages = np.unique(np.concatenate(windows or [NO_PAGES]))
        return full, int(np.count_nonzero(pages))

    # -- shape
    def add_leaf(self, parent: Node, edge: TokenArray, full: PageArray, swa: PageArray) -> Node:
        law(len(full) > 0, "an empty leaf under %s", parent)
        node = Node(edge, full, swa, np.zeros(len(swa), dtype=np.int32), parent, parent.end + len(full))
        parent.children[self.matcher.key(edge, 0)] = node
        self.num_nodes += 1
        self.num_swa_pages += int(np.count_nonzero(swa))
        self.touch(node)
        return node

    def split_at(self, node: Node, num_pages: int) -> Node:
        """The node whose end is `num_pages` into `node`: itself, or its new upper half."""
        return node if num_pages == node.num_pages else self._split(node, num_pages)

    def fill(self, node: Node, first: int, pages: PageArray) -> None:
        """Tombstones of `node` from its page `first` on become live where `pages` is not null."""
        part = slice(first, first + len(pages))
        fresh = (node.swa[part] == NULL_PAGE) & (pages != NULL_PAGE)
        count = int(np.count_nonzero(fresh))
        if count:
            node.swa[part] = np.where(fresh, pages, node.swa[part])
            self.num_swa_pages += count
            self.num_swa_leased += int(np.count_nonzero(fresh & (node.swa_leases[part] > 0)))
            self.swa_queue.push(node)

    def bury(self, node: Node, which: NDArray[np.intp]) -> PageArray:
        """Tombstones at the indices `which` of `node`; returns the pages that were there."""
        law(not node.swa_leases[which].any(), "a leased window page of %s is evicted", node)
        pages = node.swa[which]
        node.swa[which] = NULL_PAGE
        self.num_swa_pages -= len(pages)
        return pages

    def trim_leaf(self, node: Node, count: int) -> tuple[PageArray, ...]:
        """Take the last `count` pages off a leaf; returns them per pool. An emptied leaf leaves the tree."""
        law(not node.children and not node.is_guarded and node.parent is not None, "%s is in use", node)
        self._appraiser.gave_up(node.worth)
        keep = node.num_pages - count
        full, swa = node.full[keep:], node.swa[keep:]
        self.num_swa_pages -= int(np.count_nonzero(swa))
        if keep == 0:
            self._detach(node)
        else:
            node.edge = node.edge[: keep * self.layout.page_size]
            node.full, node.swa, node.swa_leases = node.full[:keep], node.swa[:keep], node.swa_leases[:keep]
            node.end -= count
            self.offer(node)
        return (full, swa[swa != NULL_PAGE]) if self.layout.window else (full,)

    def touch(self, node: Node) -> None:
        """`node` is used now. Its queued entries are stale with that, so it is offered anew."""
        self._tick += 1
        node.last_used = self._tick
        node.worth = self._appraiser.worth(node.uses, node.end * self.layout.page_size)
        self.offer(node)

    def offer(self, node: Node) -> None:
        """Queue what of `node` may be evicted now. Owed after every change of its age, its leases or its pages."""
        self.leaf_queue.push(node)
        self.swa_queue.push(node)

    def merge(self, parent: Node) -> None:
        """Join a node with its only child, if nothing ends between them and the child is no shorter.

        The length condition makes a long conversation a chain of few nodes at a cost that is flat per page.
        """
        while len(parent.children) == 1 and parent.num_leases == 0 and parent.parent is not None:
            (child,) = parent.children.values()
            above = parent.parent
            if parent.num_pages > child.num_pages:
                return
            above.children[self.matcher.key(parent.edge, 0)] = child
            child.edge = np.concatenate((parent.edge, child.edge))
            child.full = np.concatenate((parent.full, child.full))
            child.swa = np.concatenate((parent.swa, child.swa))
            child.swa_leases = np.concatenate((parent.swa_leases, child.swa_leases))
            child.parent = above
            _count_uses(child, parent)  # both are kept for the sake of the better one
            parent.is_attached = False
            self.num_nodes -= 1
            self.num_merges += 1
            self.offer(child)
            parent = above

    def nodes(self) -> Iterator[Node]:
        """Every node with pages. For audits and flushes."""
        stack = [child for root in self.roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _split(self, node: Node, count: int) -> Node:
        """Cut `node` after `count` pages; `node` keeps the lower part, the new upper part is returned."""
        law(0 < count < node.num_pages and node.parent is not None, "split %s after %d pages", node, count)
        tokens = count * self.layout.page_size
        upper = Node(
            node.edge[:tokens], node.full[:count], node.swa[:count], node.swa_leases[:count],
            node.parent, node.start + count,
            num_guarded_children=int(node.is_guarded), uses=node.uses, last_used=node.last_used, worth=node.worth,
        )  # fmt: skip
        assert node.parent is not None
        node.parent.children[self.matcher.key(upper.edge, 0)] = upper
        node.edge, node.full, node.swa = node.edge[tokens:], node.full[count:], node.swa[count:]
        node.swa_leases, node.parent = node.swa_leases[count:], upper
        upper.children[self.matcher.key(node.edge, 0)] = node
        self.num_nodes += 1
        self.num_splits += 1
        self.offer(upper)
        return upper

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[self.matcher.key(node.edge, 0)]
        node.is_attached = False
        self.num_nodes -= 1
        _count_uses(parent, node)  # a use below was a use above
        self.offer(parent)
        self.merge(parent)
        self._forget_if_empty(parent)

    def _root(self, namespace: str) -> Node:
        root = self.roots.get(namespace)
        if root is None:
            root = Node(NO_PAGES, NO_PAGES, NO_PAGES, NO_PAGES, None, 0, namespace=namespace)
            self.roots[namespace] = root
        return root

    def _forget_if_empty(self, node: Node) -> None:
        """A root without children and leases goes: namespaces come and go by the thousand."""
        if node.namespace is not None and not node.children and node.num_leases == 0:
            self.roots.pop(node.namespace, None)


def _count_uses(node: Node, other: Node) -> None:
    """What `other` was used for, `node` was, too."""
    node.uses = max(node.uses, other.uses)
    node.last_used = max(node.last_used, other.last_used)
    node.worth = max(node.worth, other.worth)


def _may_lose_tail(node: Node) -> bool:
    return not node.children and not node.is_guarded and node.parent is not None


def _may_lose_window(node: Node) -> bool:
    return bool(((node.swa != NULL_PAGE) & (node.swa_leases == 0)).any())
