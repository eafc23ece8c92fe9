"""One turn of the crank: events in order, times, the census, steps in flight."""

import pytest
from tests.support.fake_backend import expected_tokens
from tests.support.world import World, WorldConfig

from sojourn.core.errors import CorruptionError
from sojourn.engine.events import Event, FinishedEvent, FinishReason, TokensEvent


def events_of(world: World) -> list[Event]:
    events: list[Event] = []
    while world.loop.has_work:
        events += world.loop.step()
    return events


def test_an_idle_engine_does_nothing() -> None:
    world = World(WorldConfig())
    assert not world.loop.has_work
    assert world.loop.step() == []
    assert world.backend.steps == 0
    assert world.loop.wake_in() is None


def test_tokens_come_one_event_each_and_one_finish_is_the_last() -> None:
    world = World(WorldConfig())
    request_id = world.submit([1, 2, 3], 5)
    *tokens, end = events_of(world)
    assert [event.samples[0].token for event in tokens if isinstance(event, TokensEvent)] == expected_tokens(
        [1, 2, 3], 5
    )
    assert isinstance(end, FinishedEvent)
    assert end.request_id == request_id
    assert end.reason is FinishReason.LENGTH
    assert end.output_ids == tuple(expected_tokens([1, 2, 3], 5))


def test_times_are_those_of_the_clock() -> None:
    world = World(WorldConfig(chunk_tokens_max=4))
    request_id = world.submit(list(range(8)), 2)
    world.clock.now = 101.0
    world.step()
    world.clock.now = 102.0
    world.step()
    world.clock.now = 103.0
    world.step()
    end = world.records[request_id].end
    assert end is not None
    usage = end.usage
    assert (usage.queued_at, usage.admitted_at, usage.first_token_at, usage.finished_at) == (100.0, 101.0, 102.0, 103.0)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (8, 0, 2)


def test_steps_are_measured_by_phase() -> None:
    world = World(WorldConfig(chunk_tokens_max=4))
    world.submit(list(range(8)), 3)  # chunks of 4 and 4, then 2 decodes
    for _ in range(3):
        world.step()
    world.submit([50, 51, 52], 1)
    world.step()
    by_phase = {one.phase: one for one in world.loop.statistics().by_phase}
    assert {phase: sum(one.tokens.counts) for phase, one in by_phase.items()} == {"prefill": 2, "decode": 1, "mixed": 1}
    assert {phase: one.tokens.total for phase, one in by_phase.items()} == {"prefill": 8, "decode": 1, "mixed": 4}
    assert by_phase["prefill"].tokens.counts[2] == 2, "4 tokens: at most 4, more than 2"


def test_a_request_that_never_ran_has_no_times() -> None:
    world = World(WorldConfig())
    request_id = world.submit([1, 2, 3])
    world.abort(request_id)
    end = world.records[request_id].end
    assert end is not None
    assert end.usage.admitted_at is None
    assert end.usage.first_token_at is None


def test_an_abort_says_why_and_no_step_says_it_again() -> None:
    world = World(WorldConfig())
    request_id = world.submit([1, 2, 3])
    world.step()
    event = world.loop.abort(request_id, "the client left")
    assert event.message == "the client left"
    assert event.reason is FinishReason.ABORT
    assert world.loop.step() == []


@pytest.mark.parametrize("depth", [0, 1])
def test_the_census_is_offered_after_every_settled_step(depth: int) -> None:
    world = World(WorldConfig(), depth=depth)
    world.submit([1, 2, 3], 5)
    world.run()
    assert world.check.checks == world.backend.steps == world.loop.statistics().steps
    assert world.loop.statistics().in_flight == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_an_engine_that_went_idle_without_a_settled_step_says_so(depth: int) -> None:
    world = World(WorldConfig(), depth=depth)
    request_id = world.submit([1, 2, 3], 5)
    world.step()
    world.abort(request_id)
    while not world.check.idle_looks:
        world.step()
    assert world.loop.statistics().in_flight == 0
    assert world.check.checks == world.backend.steps


def test_at_depth_1_a_step_is_in_flight_while_the_next_is_planned() -> None:
    world = World(WorldConfig(chunk_tokens_max=2), depth=1)
    request_id = world.submit(list(range(8)), 3)
    world.step()
    assert world.loop.statistics().in_flight == 1
    world.step()
    assert world.loop.statistics().steps == 2
    assert world.backend.steps == 1
    world.run()
    assert world.records[request_id].tokens == expected_tokens(list(range(8)), 3)


def test_nothing_in_the_loop_catches_what_is_broken() -> None:
    world = World(WorldConfig())
    world.submit([1, 2, 3])
    world.backend.fail_with = CorruptionError("page 7 has two owners")
    with pytest.raises(CorruptionError, match="page 7"):
        world.loop.step()
