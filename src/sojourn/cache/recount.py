"""Recounts a tree from its nodes and leases, and compares with what the tree keeps up as it goes. Changes nothing."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sojourn.cache.node import NO_PAGES, Lease, Node
from sojourn.cache.tree import Tree
from sojourn.core.errors import law
from sojourn.core.ids import NULL_PAGE
from sojourn.core.step import PageArray, Pool
from sojourn.pages.holding import PageList


def recount(tree: Tree) -> tuple[PageArray, ...]:
    """The pages of every node, per pool. Raises CorruptionError on the first broken law of the tree."""
    nodes = list(tree.nodes())
    law(len(nodes) == tree.num_nodes, "%d nodes found, %d counted", len(nodes), tree.num_nodes)
    _shape(tree, nodes)
    _leases(tree, nodes)
    _windows(tree, nodes)
    full = np.concatenate([node.full for node in nodes] or [NO_PAGES])
    if not tree.layout.window:
        return (full,)
    swa = np.concatenate([node.swa for node in nodes] or [NO_PAGES])
    return full, swa[swa != NULL_PAGE]


def check_loan(lists: Sequence[PageList], lease: Lease, num_lent: int) -> None:
    """What a borrower lists below its own pages is what the tree has there, and its lease covers what it may read."""
    law(lease.node.end == num_lent, "a lease to %d, %d pages lent", lease.node.end, num_lent)
    full = lists[Pool.FULL].pages
    node: Node | None = lease.node
    while node is not None and node.num_pages:
        part = slice(node.start, node.end)
        law(bool((full[part] == node.full).all()), "%s lends other pages than its borrower lists", node)
        if len(lists) > 1:
            listed = lists[Pool.SWA].pages[part]
            law(bool(((listed == NULL_PAGE) | (listed == node.swa)).all()), "%s: other window pages are listed", node)
            before = max(0, min(lease.window_from, node.end) - node.start)
            law(not listed[:before].any(), "%s: window pages are listed that the lease does not cover", node)
        node = node.parent


def _shape(tree: Tree, nodes: list[Node]) -> None:
    for node in nodes:
        parent = node.parent
        law(node.is_attached and parent is not None and node.num_pages > 0, "%s hangs nowhere", node)
        assert parent is not None
        law(parent.children.get(tree.matcher.key(node.edge, 0)) is node, "%s is not its parent's child", node)
        law(node.start == parent.end, "%s does not follow %s", node, parent)
        law(len(node.edge) == node.num_pages * tree.layout.page_size, "%s: edge of %d tokens", node, len(node.edge))
        law(len(node.swa) == len(node.swa_leases), "%s: window lists differ", node)
        law(len(node.swa) == (node.num_pages if tree.layout.window else 0), "%s: lists are not parallel", node)


def _leases(tree: Tree, nodes: list[Node]) -> None:
    counted = Counter(lease.node for lease in tree.leases)
    guarded = 0
    for node in [*tree.roots.values(), *nodes]:
        law(node.num_leases == counted.pop(node, 0), "%s: %d leases", node, node.num_leases)
        below = sum(child.is_guarded for child in node.children.values())
        law(
            node.num_guarded_children == below,
            "%s: %d guarded children, %d found",
            node,
            node.num_guarded_children,
            below,
        )
        guarded += node.num_pages if node.is_guarded else 0
    law(not counted, "leases on nodes outside the tree: %s", counted)
    law(guarded == tree.num_guarded_pages, "%d guarded pages, %d counted", guarded, tree.num_guarded_pages)
    law(not any(lease.is_returned for lease in tree.leases), "a returned lease is kept")


def _windows(tree: Tree, nodes: list[Node]) -> None:
    if not tree.layout.window:
        return
    expected = {node: np.zeros(node.num_pages, dtype=np.int32) for node in nodes}
    for lease in tree.leases:
        node: Node | None = lease.node
        while node is not None and node.end > lease.window_from:
            expected[node][max(lease.window_from - node.start, 0) :] += 1
            node = node.parent
    live = leased = 0
    for node in nodes:
        law(bool((expected[node] == node.swa_leases).all()), "%s: window leases miscounted", node)
        live += int(np.count_nonzero(node.swa))
        leased += int(np.count_nonzero((node.swa != NULL_PAGE) & (node.swa_leases > 0)))
    law(live == tree.num_swa_pages, "%d live window pages, %d counted", live, tree.num_swa_pages)
    law(leased == tree.num_swa_leased, "%d leased window pages, %d counted", leased, tree.num_swa_leased)
