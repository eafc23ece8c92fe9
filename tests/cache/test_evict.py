"""The queue of victims: least recently used first, stale entries skipped, and never longer than what it may need."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sojourn.cache.evict import NodeQueue


@dataclass(eq=False)
class Thing:
    last_used: int
    is_attached: bool = True
    is_free: bool = True


def queue() -> NodeQueue[Thing]:
    return NodeQueue(lambda thing: thing.is_free)


def test_oldest_first_and_each_once() -> None:
    things = [Thing(age) for age in (5, 1, 3)]
    victims = queue()
    for thing in (*things, *things):
        victims.push(thing)
    order = []
    while (thing := victims.pop()) is not None:
        order.append(thing.last_used)
        thing.is_free = False
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


def test_a_hot_node_does_not_fill_the_heap() -> None:
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
