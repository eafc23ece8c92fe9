"""A turn that finds less than its history says why."""

import pytest
from tests.support.session_world import SessionWorld
from tests.support.world import WorldConfig

from sojourn.sessions.misses import Miss, miss_of

PAGE = 16
FIRST, SECOND = list(range(20, 75)), [9, 8, 7]


def world_of(window: int = 0, num_pages: int = 64) -> SessionWorld:
    return SessionWorld(WorldConfig(page_size=PAGE, num_pages=num_pages, window=window))


def next_turn(world: SessionWorld, name: str) -> tuple[int, str, str | None]:
    """How many tokens of the history are found, where, and why not all."""
    history = len(world.history(name))
    usage = world.run_turn(name, SECOND, 4).usage
    assert (usage.cache_miss is None) == (usage.cached_tokens >= history - 1)
    return usage.cached_tokens, usage.cached_source, usage.cache_miss


def begun(world: SessionWorld, prompt: list[int] = FIRST) -> str:
    """A session of one turn, which misses nothing: there was nothing yet."""
    name = world.service.open()
    assert world.run_turn(name, prompt, 8).usage.cache_miss is None
    return name


def test_a_session_on_its_own_kv_misses_nothing() -> None:
    world = world_of()
    name = begun(world)
    assert next_turn(world, name) == (62, "session", None)


def test_less_than_a_page_is_lost_in_what_became_of_the_session() -> None:
    world = world_of()
    name = begun(world)
    fork = world.service.fork(name, length=40)
    assert next_turn(world, fork) == (32, "prefix", "fork")
    world.slots.demote(name)
    assert next_turn(world, name) == (48, "prefix", "demoted")
    assert next_turn(world, name)[1:] == ("session", None), "said once"
    world.service.rewind(name, length=40)
    assert next_turn(world, name) == (32, "prefix", "rewind")
    world.close_all()


def test_a_flush_is_no_eviction() -> None:
    world = world_of()
    name = begun(world)
    other = begun(world, FIRST[::-1])
    world.slots.demote(other)
    world.slots.flush()
    assert next_turn(world, name) == (0, "none", "flushed")
    assert next_turn(world, other)[2] == "flushed"
    world.close_all()


def test_pages_that_others_took_were_evicted() -> None:
    world = world_of(num_pages=12)
    name = begun(world)
    world.submit(list(range(60, 20, -1)) * 4, 4)
    world.run()
    found, _, miss = next_turn(world, name)
    assert found < 48
    assert miss == "evicted"
    world.close_all()


def test_a_window_that_is_gone_is_no_eviction() -> None:
    """A fork at a point whose window the running session has let go, although its full pages are there."""
    world = world_of(window=24)
    name = world.service.open()
    world.run_turn(name, FIRST * 3, 8)
    fork = world.service.fork(name, length=100)
    found, _, miss = next_turn(world, fork)
    assert (found < 96, miss) == (True, "window")
    world.close_all()


def test_a_turn_that_ended_while_it_was_retracted() -> None:
    world = world_of()
    name = begun(world)
    world.turn(name, SECOND, 40)
    world.step(6)
    request = next(world.world.scheduler.running())
    world.world.scheduler._retract(request)
    assert world.service.interrupt(name)
    world.run()
    assert next_turn(world, name)[1:] == ("prefix", "retracted")
    world.close_all()


@pytest.mark.parametrize(
    ("needed", "found", "reach", "loss", "miss"),
    [
        (99, 99, 96, Miss.EVICTED, None),
        (99, 100, 96, None, None),
        (99, 96, 96, Miss.DEMOTED, Miss.DEMOTED),
        (99, 95, 95, Miss.DEMOTED, Miss.EVICTED),
        (99, 80, 96, Miss.DEMOTED, Miss.WINDOW),
        (99, 0, 0, None, Miss.WINDOW),
        (99, 32, 32, Miss.RESTORED, Miss.RESTORED),
        (96, 80, 80, Miss.FORK, Miss.EVICTED),
    ],
)
def test_the_choice_of_the_word(needed: int, found: int, reach: int, loss: Miss | None, miss: Miss | None) -> None:
    assert miss_of(needed, found, reach, PAGE, loss) is miss
