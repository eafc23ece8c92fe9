"""Whose KV goes first when pages are short, and what one session may have: over the whole small engine, no HTTP."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fake_backend import VOCAB_SIZE
from tests.support.session_world import SessionWorld
from tests.support.world import Record, WorldConfig

from sojourn.core.errors import ClientError
from sojourn.engine.events import FinishReason
from sojourn.scheduler.admission import HELD_UP_STEPS, PATIENCE_STEPS
from sojourn.sessions.journal import SqliteJournal
from sojourn.sessions.recorder import Recorder
from sojourn.sessions.service import PRIORITY_MAX, ServiceConfig, SessionService, TurnParams
from sojourn.sessions.store import Added

SMALL = WorldConfig(page_size=4, num_pages=32, context=128, seqs_max=4, step_tokens_max=20, chunk_tokens_max=16)


def text(salt: int, length: int) -> list[int]:
    return [(salt * 29 + position * 7) % VOCAB_SIZE for position in range(length)]


def converse(world: SessionWorld, name: str, salt: int, turns: int = 1, length: int = 12) -> None:
    for turn in range(turns):
        world.run_turn(name, text(salt + 100 * turn, length), 4)


def kept(world: SessionWorld, *names: str) -> set[str]:
    """Those that still hold their KV."""
    return {name for name in names if (slot := world.slots.slot(name)) is not None and slot.holding is not None}


def source(world: SessionWorld, name: str) -> str:
    return world.run_turn(name, text(7, 3), 2).usage.cached_source


# -- the order of demotion


def test_low_priority_goes_first_and_high_priority_last() -> None:
    world = SessionWorld(SMALL)
    names = [world.service.open(name, priority=priority) for name, priority in (("a", 1), ("b", -1), ("c", 0))]
    for salt, name in enumerate(names):
        converse(world, name, salt, turns=2)
    gone = []
    for number, length in enumerate((40, 80, 120)):  # of 128 places, 32 are each one's
        left = kept(world, *names)
        world.submit(text(50 + number, length), 1)
        world.run()
        gone += sorted(left - kept(world, *names))
    assert gone == ["b", "c", "a"]
    world.close_all()


def test_of_equal_priority_the_use_before_the_last_decides() -> None:
    """`twice` was used longer ago than `once`, but came back; `once` never did."""
    world = SessionWorld(SMALL)
    twice, once = world.service.open("twice"), world.service.open("once")
    converse(world, twice, 1, turns=2)
    converse(world, once, 2, length=40)
    world.submit(text(60, 80), 1)
    world.run()
    assert kept(world, twice, once) == {twice}
    world.close_all()


def test_a_burst_of_conversations_that_come_back_after_long_is_demoted_among_itself() -> None:
    """Four are in use and fill half of the pool; twelve others take turns in the other half."""
    world = SessionWorld(WorldConfig(page_size=4, num_pages=64, context=128, seqs_max=4, step_tokens_max=20))
    cold = [world.service.open(f"cold{number}") for number in range(12)]
    hot = [world.service.open(f"hot{number}") for number in range(4)]
    for salt, name in enumerate(cold):
        converse(world, name, salt)
    for salt, name in enumerate(hot):
        converse(world, name, 40 + salt, turns=2)
    for salt, name in enumerate(cold):  # they come back, each after all the others
        converse(world, name, 60 + salt)
        assert kept(world, *hot) == set(hot), f"{name} pushed out one that is in use"
    assert world.slots.slot_statistics().demotions >= 8
    assert {source(world, name) for name in hot} == {"session"}
    world.close_all()


def test_what_was_hot_and_is_used_no_more_does_not_stay_for_ever() -> None:
    world = SessionWorld(SMALL)
    old = world.service.open("old")
    converse(world, old, 1, turns=4)
    others = [world.service.open(f"new{number}") for number in range(3)]
    for turn in range(3):
        for salt, name in enumerate(others):
            converse(world, name, 10 * turn + salt)
    assert kept(world, old) == set()
    world.close_all()


# -- who waits for whom


def full_of_hot(world: SessionWorld) -> list[str]:
    """Idle conversations in use that fill the pool."""
    names = [world.service.open(f"hot{number}") for number in range(3)]
    for salt, name in enumerate(names):
        converse(world, name, salt, turns=2, length=10)
    return names


def test_a_newcomer_waits_for_what_runs_before_it_pushes_out_what_is_in_use() -> None:
    world = SessionWorld(SMALL)
    hot = full_of_hot(world)
    running = world.turn(hot[0], text(70, 4), TurnParams(max_new_tokens=30))
    world.step(2)
    newcomer = world.submit(text(80, 60), 4)
    while running.end is None:
        assert kept(world, *hot) == set(hot[1:]), "pushed out although it need not have been"
        assert newcomer.tokens == []
        world.step()
    world.run()
    assert newcomer.end is not None
    world.close_all()


def test_it_waits_no_longer_than_its_patience() -> None:
    world = SessionWorld(WorldConfig(page_size=4, num_pages=128, context=512, seqs_max=4, step_tokens_max=20))
    hot = [world.service.open(f"hot{number}") for number in range(3)]
    for salt, name in enumerate(hot):
        converse(world, name, salt, turns=2, length=50)
    running = world.turn(hot[0], text(70, 4), TurnParams(max_new_tokens=PATIENCE_STEPS + 60))
    world.step(2)
    newcomer = world.submit(text(80, 130), 4)
    world.step(PATIENCE_STEPS // 2)
    assert kept(world, *hot) == set(hot[1:])
    world.run()
    assert newcomer.end is not None
    assert running.end is not None
    assert newcomer.end.usage.admitted_at is not None
    assert kept(world, *hot) != set(hot)
    world.close_all()


def test_the_short_pass_one_that_pages_are_short_for_but_not_for_ever() -> None:
    """Two short prompts with long answers run at any time, and between them have more than it could do without."""
    world = SessionWorld(SMALL)
    passing: list[Record] = []
    alive: list[Record] = []
    waiting: Record | None = None
    steps = 0
    while waiting is None or waiting.end is None:
        alive = [record for record in alive if record.end is None]
        if len(alive) < 3 and (not alive or len(alive[-1].tokens) >= 12):
            alive.append(world.submit(text(3 + len(passing), 12), 30))
            passing.append(alive[-1])
        if waiting is None and len(passing) > 2:
            waiting = world.submit(text(2, 90), 2)
        world.clock.now += 1
        world.step()
        steps += 1
        assert steps < 2 * HELD_UP_STEPS, world.world.scheduler.statistics()
    world.run()
    waited = admitted_at(waiting) - waiting.end.usage.queued_at
    assert HELD_UP_STEPS < waited < HELD_UP_STEPS + 60, "those that ran may end, and that is all"
    passed = [record for record in passing if admitted_at(record) < admitted_at(waiting)]
    assert len(passed) > HELD_UP_STEPS // 30
    assert passed == passing[: len(passed)], "and they in order of arrival"
    world.close_all()


def admitted_at(record: Record) -> float:
    assert record.end is not None
    assert record.end.usage.admitted_at is not None
    return record.end.usage.admitted_at


# -- what one session may have


def test_priority_has_bounds_and_a_fork_has_its_parent_s() -> None:
    world = SessionWorld(SMALL)
    for priority in (-PRIORITY_MAX - 1, PRIORITY_MAX + 1):
        with pytest.raises(ClientError, match="priority must be a whole number from -100 to 100") as refused:
            world.service.open(priority=priority)
        assert refused.value.param == "priority"
    parent = world.service.open(priority=3)
    converse(world, parent, 1)
    assert world.service.summary(world.service.fork(parent)).priority == 3
    world.close_all()


def test_a_session_has_no_more_tokens_than_its_bound() -> None:
    world = SessionWorld(SMALL)
    config = ServiceConfig(VOCAB_SIZE, SMALL.context, session_tokens_max=40)
    world.service = SessionService(world.world.loop, world.slots, config, clock=world.clock, new_id=world._new_id)
    name = world.service.open()
    first = world.turn(name, text(1, 30), TurnParams())
    world.run()
    assert first.end is not None
    assert first.end.reason is FinishReason.LENGTH
    assert len(world.history(name)) == 40
    with pytest.raises(ClientError, match="would have 45 tokens with this turn; the bound of one is 40") as refused:
        world.turn(name, text(2, 5))
    assert (refused.value.param, refused.value.code) == ("input_ids", "session_tokens_exceeded")
    assert len(world.history(name)) == 40
    world.service.rewind(name, length=20)
    again = world.turn(name, text(2, 5), 100)
    world.run()
    assert len(again.tokens) == 15
    world.close_all()


def test_a_session_that_is_forked_or_brought_has_no_more_than_that_either(tmp_path: Path) -> None:
    """A session that was kept when the bound was higher stays; what is made of it is new."""
    world = SessionWorld(SMALL)
    name = world.service.open()
    world.run_turn(name, text(1, 30), TurnParams(max_new_tokens=10))
    stored = world.service.copy(name)
    world.service.close(name)
    store = SqliteJournal(tmp_path / "a.db")
    store.commit([Added(stored)])
    config, recorder = ServiceConfig(VOCAB_SIZE, SMALL.context, session_tokens_max=39), Recorder(store, world.clock)
    world.service = SessionService(
        world.world.loop, world.slots, config, clock=world.clock, new_id=world._new_id, recorder=recorder
    )
    world.service.restore()
    for param, act in (
        ("length", lambda: world.service.fork(name)),
        ("file", lambda: world.service.take_in(replace(stored, session_id="brought"))),
    ):
        with pytest.raises(ClientError, match="would have 40 tokens; the bound of one is 39") as refused:
            act()
        assert (refused.value.param, refused.value.code) == (param, "session_tokens_exceeded")
    assert world.service.session_ids() == (name,)
    assert len(world.history(world.service.fork(name, length=39))) == 39
    world.close_all()
    recorder.close()
