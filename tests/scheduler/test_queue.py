"""Waiting in order of arrival."""

import pytest
from tests.support.world import World, WorldConfig

from sojourn.core.errors import CorruptionError
from sojourn.scheduler.queue import WaitingQueue
from sojourn.scheduler.request import Request, RequestState


def requests(count: int) -> list[Request]:
    world = World(WorldConfig())
    made = [world.request([1]) for _ in range(count)]
    for arrival, request in enumerate(made):
        request.arrival = arrival
    return made


def test_the_oldest_is_served_first_and_a_retracted_one_returns_to_its_place() -> None:
    first, second, third = requests(3)
    queue = WaitingQueue()
    queue.push(second)
    queue.push(third)
    queue.push(first)
    assert list(queue) == [first, second, third]
    assert queue.first(2) == [first, second]
    queue.remove(first)
    queue.push(first)
    assert queue.head() is first
    queue.remove(second)
    assert list(queue) == [first, third]
    assert len(queue) == 2


def test_an_empty_queue_has_no_head() -> None:
    queue = WaitingQueue()
    assert queue.head() is None
    assert queue.first(3) == []


def test_only_waiting_requests_wait() -> None:
    (request,) = requests(1)
    request.state = RequestState.RUNNING
    with pytest.raises(CorruptionError):
        WaitingQueue().push(request)
