"""Rows of the table of scenarios with known right answers that need scheduler and service, over both inner caches."""

from typing import Unpack

import pytest
from tests.support.fake_backend import VOCAB_SIZE, expected_tokens
from tests.support.session_world import SessionWorld
from tests.support.world import Sizes, WorldConfig, check_all_free

from sojourn.core.errors import ClientError, ConflictError
from sojourn.engine.events import FinishReason
from sojourn.sessions.service import CloseReply
from sojourn.sessions.turns import SessionState

kinds = pytest.mark.parametrize(
    ("cache", "page_size", "window"),
    [(cache, page, window) for cache in ("radix", "none") for page in (1, 16) for window in (0, 32)],
)


def world_of(cache: str, page_size: int, window: int, **others: Unpack[Sizes]) -> SessionWorld:
    config = WorldConfig(cache=cache, page_size=page_size, window=window, num_pages=320 // page_size, **others)
    return SessionWorld(config)


def some(count: int, salt: int = 0) -> list[int]:
    return [(salt * 13 + position * 11 + 3) % VOCAB_SIZE for position in range(count)]


def requests_alive(world: SessionWorld) -> int:
    statistics = world.world.scheduler.statistics()
    return statistics.waiting + statistics.running


@pytest.mark.scenario("A11")
@kinds
def test_a11_a_turn_of_nothing_on_an_empty_session(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window)
    session_id = world.service.open()
    with pytest.raises(ClientError) as refusal:
        world.turn(session_id, [])
    assert refusal.value.param == "input_ids"
    assert world.service.history(session_id).state is SessionState.IDLE
    assert requests_alive(world) == 0
    world.run_turn(session_id, some(5), 3)
    world.close_all()


@pytest.mark.scenario("A12")
@kinds
def test_a12_idle_sessions_take_no_batch_place(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window, seqs_max=4, step_tokens_max=64)
    names = [world.service.open() for _ in range(4)]
    for salt, name in enumerate(names):
        world.run_turn(name, some(6, salt), 3)
    assert world.slots.session_held_req_count() == 4
    prompts = [[*world.history(name), *some(4, 9)] for name in names]
    records = [world.turn(name, some(4, 9), 5) for name in names]
    world.step()
    assert world.backend.batch_sizes[-1] == 4
    assert all(len(record.tokens) == 1 for record in records)
    world.run()
    assert [record.tokens for record in records] == [expected_tokens(prompt, 5) for prompt in prompts]
    world.close_all()


@pytest.mark.scenario("A13")
@kinds
def test_a13_a_turn_too_long_for_the_context(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window, context=64)
    session_id = world.service.open()
    world.run_turn(session_id, some(20), 8)

    def seen() -> tuple[object, ...]:
        return (
            world.service.pages_held(session_id),
            world.slots.statistics(),
            world.slots.slot_statistics(),
            world.world.scheduler.statistics(),
            world.history(session_id),
        )

    before = seen()
    with pytest.raises(ClientError, match=r"64 tokens .* 64") as refusal:
        world.turn(session_id, some(36))
    assert refusal.value.param == "prompt"
    assert seen() == before
    assert world.run_turn(session_id, some(4, 1), 4).usage.cached_tokens == 27
    assert world.slots.slot_statistics().resumes == 1
    world.close_all()


@pytest.mark.scenario("A14")
@kinds
def test_a14_a_retracted_turn(cache: str, page_size: int, window: int) -> None:
    """The hook retracts at the sixth step that begins with something running: turn 2 has 4 outputs then."""
    world = world_of(cache, page_size, window, retract_every=6)
    session_id = world.service.open()
    world.run_turn(session_id, some(4), 3)
    before = world.history(session_id)
    record = world.turn(session_id, some(2, 1), 12)
    world.step(4)
    assert len(record.tokens) == 4
    world.step()
    assert (world.world.scheduler.statistics().waiting, world.world.scheduler.statistics().retractions) == (1, 1)
    assert world.history(session_id) == before
    slot = world.slots.slot(session_id)
    assert slot is not None
    assert slot.is_active
    assert slot.holding is None
    with pytest.raises(ConflictError):
        world.turn(session_id, [1])
    world.run()
    assert record.tokens == expected_tokens([*before, *some(2, 1)], 12)
    assert record.end is not None
    assert record.end.usage.num_retractions >= 1
    world.close_all()


@pytest.mark.scenario("A15")
@kinds
def test_a15_overlapping_turns_are_refused(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window)
    session_id = world.service.open()
    world.run_turn(session_id, some(6), 4)
    before = world.history(session_id)
    second = world.turn(session_id, some(3, 1), 9)
    for salt in (2, 3):
        world.step(2)
        with pytest.raises(ConflictError):
            world.turn(session_id, some(3, salt))
        assert requests_alive(world) == 1
    world.run()
    assert second.tokens == expected_tokens([*before, *some(3, 1)], 9)
    world.run_turn(session_id, some(3, 4), 4)
    world.close_all()


@pytest.mark.scenario("A16")
@kinds
def test_a16_two_first_turns_at_once(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window)
    session_id = world.service.open()
    first = world.turn(session_id, some(6), 4)
    with pytest.raises(ConflictError):
        world.turn(session_id, some(6, 1), 4)
    assert requests_alive(world) == 1
    world.run()
    assert first.tokens == expected_tokens(some(6), 4)
    assert world.history(session_id) == [*some(6), *first.tokens]
    world.close_all()


@pytest.mark.scenario("A17")
@kinds
@pytest.mark.parametrize("turns_before", [0, 1])
def test_a17_a_turn_aborted_while_waiting(cache: str, page_size: int, window: int, turns_before: int) -> None:
    world = world_of(cache, page_size, window, seqs_max=1)
    session_id, other = world.service.open(), world.service.open()
    for _ in range(turns_before):
        world.run_turn(session_id, some(6), 4)
    before = world.history(session_id)
    running = world.turn(other, some(9, 5), 20)
    world.step(2)
    waiting = world.turn(session_id, some(3, 1), 9)
    world.step(2)
    assert world.world.scheduler.statistics().waiting == 1
    assert world.service.abort(session_id)
    following = world.turn(session_id, some(5, 2), 6)
    world.run()
    assert waiting.reason is FinishReason.ABORT
    assert waiting.tokens == []
    assert running.tokens == expected_tokens(some(9, 5), 20)
    assert following.tokens == expected_tokens([*before, *some(5, 2)], 6)
    world.close_all()


@pytest.mark.scenario("A18")
@kinds
@pytest.mark.parametrize("turns_before", [0, 1])
def test_a18_closed_while_running_then_retracted_then_aborted(
    cache: str, page_size: int, window: int, turns_before: int
) -> None:
    world = world_of(cache, page_size, window, retract_every=6)
    session_id = world.service.open()
    for _ in range(turns_before):
        world.run_turn(session_id, some(4), 3)
    record = world.turn(session_id, some(6, 1), 30)
    world.step(3)
    assert world.service.close(session_id) == CloseReply(deferred=True, freed_pages=None)
    while world.world.scheduler.statistics().waiting == 0:
        world.step()
    assert world.closed == []
    assert world.service.abort(session_id)
    world.step()
    assert record.reason is FinishReason.ABORT
    (notice,) = world.closed
    assert (notice.session_id, notice.is_expired) == (session_id, False)
    assert notice.freed_pages == 0, "retraction had given everything to the tree, or back"
    assert (notice.num_tokens, notice.num_turns) == (7 * turns_before, turns_before)
    assert world.service.session_ids() == ()
    assert not world.service.has_work
    check_all_free(world.world.cache)
