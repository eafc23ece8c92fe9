"""What is given up first: what is worth least, stale entries skipped, and a queue never longer than what it may need."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.cache.evict import COST_MAX, DEPTH_UNIT, USES_MAX, Appraiser, VictimQueue
from sojourn.cache.node import Node
from sojourn.cache.tree import Tree
from sojourn.pages.sizing import PoolLayout

PAGE = 4


@dataclass(eq=False)
class Thing:
    last_used: int
    is_attached: bool = True
    is_free: bool = True

    @property
    def rank(self) -> tuple[float, ...]:
        return (self.last_used,)


def queue() -> VictimQueue[Thing]:
    return VictimQueue(lambda thing: thing.is_free)


def test_lowest_first_and_each_once() -> None:
    things = [Thing(age) for age in (5, 1, 3)]
    victims = queue()
    for thing in (*things, *things):
        victims.push(thing)
    order = []
    while (victim := victims.pop()) is not None:
        order.append(victim.last_used)
        victim.is_free = False
    assert order == [1, 3, 5]


def test_what_was_used_left_or_lent_since_is_skipped() -> None:
    used, left, lent, last = (Thing(age) for age in (1, 2, 3, 4))
    victims = queue()
    for thing in (used, left, lent, last):
        victims.push(thing)
    used.last_used, left.is_attached, lent.is_free = 9, False, False
    assert victims.pop() is last
    assert victims.pop() is None


def test_what_does_not_qualify_is_not_queued() -> None:
    victims = queue()
    victims.push(Thing(1, is_free=False))
    assert len(victims) == 0


def test_a_hot_thing_does_not_fill_the_heap() -> None:
    victims, hot = queue(), Thing(0)
    for age in range(10_000):
        hot.last_used = age
        victims.push(hot)
    assert len(victims) < 200
    assert victims.pop() is hot


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=300))
def test_against_a_scan(uses: list[tuple[int, bool]]) -> None:
    things = [Thing(-1, is_free=False) for _ in range(10)]
    victims = queue()
    for age, (which, is_free) in enumerate(uses):
        things[which].last_used, things[which].is_free = age, is_free
        victims.push(things[which])
    oldest = min((t for t in things if t.is_free), key=lambda t: t.last_used, default=None)
    assert victims.pop() is oldest


# -- worth


def test_worth_counts_uses_and_depth_up_to_a_bound() -> None:
    worth = Appraiser().worth
    assert worth(1, 0) == 1
    assert worth(2, 0) == worth(1, DEPTH_UNIT) == 2
    assert worth(100, 0) == USES_MAX
    assert worth(1, 10**9) == COST_MAX


def test_what_was_found_often_outlives_what_is_new_and_then_fades() -> None:
    """Everything is recency in the end: victims raise the floor, and fame is bounded."""
    appraiser = Appraiser()
    famous = appraiser.worth(USES_MAX, 0)
    outlived = 0
    while (fresh := appraiser.worth(1, 0)) <= famous:
        appraiser.gave_up(fresh)
        outlived += 1
    assert outlived == USES_MAX


def leaf(tree: Tree, salt: int, pages: int = 1) -> Node:
    """A leaf of its own, used now."""
    match = tree.match("", np.array([salt], dtype=np.int32), 0)
    root = tree.lend("", match).node
    edge = np.full(pages * PAGE, salt, dtype=np.int32)
    return tree.add_leaf(root, edge, np.arange(1, pages + 1, dtype=np.int32), np.zeros(0, dtype=np.int32))


def found(tree: Tree, salt: int, pages: int = 1) -> None:
    match = tree.match("", np.full(pages * PAGE, salt, dtype=np.int32), pages)
    assert match.num_pages == pages
    tree.take_back(tree.lend("", match))


def test_of_equals_the_one_used_longer_ago_goes_and_from_its_tail_to_its_start() -> None:
    tree = Tree(PoolLayout(PAGE, 0))
    first, second = leaf(tree, 1, pages=3), leaf(tree, 2, pages=3)
    for pages_left in (2, 1, 0):
        assert tree.leaf_queue.pop() is first
        tree.trim_leaf(first, 1)
        assert first.num_pages == max(pages_left, 1) or not first.is_attached
    assert tree.leaf_queue.pop() is second


def test_what_was_found_again_and_what_is_deep_stays_longer() -> None:
    tree = Tree(PoolLayout(PAGE, 0))
    again, deep, once = leaf(tree, 1), leaf(tree, 2, pages=DEPTH_UNIT), leaf(tree, 3)
    found(tree, 1)
    order = []
    while (victim := tree.leaf_queue.pop()) is not None:
        order.append(victim)
        tree.trim_leaf(victim, victim.num_pages)
    assert order == [once, again, deep]  # twice as often: 2; 16,384 tokens deep: 4


def test_a_parent_is_worth_what_its_child_was() -> None:
    """A use below was a use above: a branch goes from its tail to its root before a better one is touched."""
    tree = Tree(PoolLayout(PAGE, 0))
    parent, middle = leaf(tree, 1, pages=3), leaf(tree, 2)
    found(tree, 2)
    lease = tree.lend_node(parent)
    child = tree.add_leaf(parent, np.full(PAGE, 7, dtype=np.int32), np.ones(1, dtype=np.int32), parent.swa)
    child.uses = USES_MAX
    tree.touch(child)
    tree.take_back(lease)
    order = []
    while (victim := tree.leaf_queue.pop()) is not None:
        order.append(victim)
        tree.trim_leaf(victim, victim.num_pages)
    assert order == [middle, child, parent]


@pytest.mark.parametrize("count", [100, 10_000])
def test_a_victim_costs_no_walk_over_the_tree(count: int) -> None:
    """What a victim is asked, entry by entry, does not grow with the number of leaves."""
    asked = 0

    def qualifies(thing: Thing) -> bool:
        nonlocal asked
        asked += 1
        return thing.is_free

    victims = VictimQueue[Thing](qualifies)
    for age in range(count):
        victims.push(Thing(age))
    asked = 0
    for _ in range(50):
        thing = victims.pop()
        assert thing is not None
        thing.last_used += count
        victims.push(thing)
    assert asked <= 2 * 50 + (count if len(victims) > 2 * count else 0)
