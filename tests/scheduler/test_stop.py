"""The first of stop id, stop string and length ends a request, in token order."""

from collections.abc import Sequence

import pytest
from tests.support.world import World, WorldConfig

from sojourn.core.errors import CorruptionError
from sojourn.scheduler.request import Request, StopConditions
from sojourn.scheduler.stop import FinishReason, Stop, stop_at


class MatchAt:
    """A stop matcher that completes its string at the n-th token, and remembers what it was fed."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.fed: list[int] = []

    def feed(self, token_id: int) -> str | None:
        self.fed.append(token_id)
        return "END" if len(self.fed) == self._at else None


def first_stop(request: Request, tokens: Sequence[int]) -> tuple[int, Stop] | None:
    for count, token in enumerate(tokens, 1):
        request.append(token)
        stop = stop_at(request, token)
        if stop is not None:
            return count, stop
    return None


def request_of(max_new_tokens: int, stop_ids: Sequence[int] = (), matcher: MatchAt | None = None) -> Request:
    world = World(WorldConfig())
    request = world.request([1, 2, 3], max_new_tokens, stop_ids=frozenset(stop_ids), matcher=matcher)
    world.loop.submit(request)
    return request


@pytest.mark.parametrize(
    ("stop_ids", "match_at", "length", "count", "stop"),
    [
        ((), 0, 3, 3, Stop(FinishReason.LENGTH)),
        ((12,), 0, 5, 3, Stop(FinishReason.STOP, 12)),
        ((12,), 2, 5, 2, Stop(FinishReason.STOP, "END")),
        ((11,), 2, 5, 2, Stop(FinishReason.STOP, 11)),  # id and string at once: the id
        ((), 3, 3, 3, Stop(FinishReason.STOP, "END")),  # string and length at once: the string
        ((12,), 0, 3, 3, Stop(FinishReason.STOP, 12)),  # id and length at once: the id
        ((14,), 4, 2, 2, Stop(FinishReason.LENGTH)),
    ],
)
def test_the_first_one_wins(stop_ids: tuple[int, ...], match_at: int, length: int, count: int, stop: Stop) -> None:
    request = request_of(length, stop_ids, MatchAt(match_at))
    assert first_stop(request, [10, 11, 12, 13, 14]) == (count, stop)


def test_the_matcher_is_fed_every_token_once() -> None:
    matcher = MatchAt(0)
    first_stop(request_of(4, (), matcher), [10, 11, 12, 13])
    assert matcher.fed == [10, 11, 12, 13]


def test_eos_ids_can_be_ignored_and_stop_ids_cannot() -> None:
    stop = StopConditions(eos_ids=frozenset({1}), stop_ids=frozenset({2}), ignore_eos=True)
    assert stop.ending_ids == {2}
    assert StopConditions(eos_ids=frozenset({1}), stop_ids=frozenset({2})).ending_ids == {1, 2}


def test_the_buffer_grows_and_keeps_its_tokens() -> None:
    request = request_of(300)
    early = request.cached.known
    for token in range(300):
        request.append(token)
    assert request.output_ids == tuple(range(300))
    assert early.tolist() == [1, 2, 3]
    with pytest.raises(CorruptionError):
        request.append(0)
