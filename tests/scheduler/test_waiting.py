"""Who waits says what for."""

from tests.support.session_world import SessionWorld
from tests.support.world import World, WorldConfig


def reasons(world: World) -> dict[str, int]:
    """Those there are; they add up to all who wait."""
    statistics = world.scheduler.statistics()
    counts = dict(statistics.waiting_for)
    assert set(counts) == {"no_pages", "batch_full", "fetching", "in_line"}
    assert sum(counts.values()) == statistics.waiting
    return {reason: count for reason, count in counts.items() if count}


def test_places_pages_and_the_line() -> None:
    world = World(WorldConfig(num_pages=8, seqs_max=2, context=128))
    world.submit(list(range(60)), 20)
    for number in range(3):
        world.submit([number] * 60, 20)
    assert reasons(world) == {"in_line": 4}, "no step has been planned"
    for _ in range(8):
        world.step()
    assert reasons(world).get("no_pages", 0) + reasons(world).get("batch_full", 0) == sum(reasons(world).values()) > 0
    world.run()
    assert reasons(world) == {}


def test_without_a_place_nobody_is_asked_for_pages() -> None:
    world = World(WorldConfig(seqs_max=1))
    for number in range(3):
        world.submit([number] * 5, 5)
    world.step()
    assert reasons(world) == {"batch_full": 2}
    world.run()


def test_without_pages_the_first_in_line_waits_for_them() -> None:
    world = World(WorldConfig(num_pages=8, seqs_max=4, context=128, chunk_tokens_max=64))
    for number in range(2):
        world.submit([number] * 100, 5)
    for _ in range(4):
        world.step()
    assert reasons(world) == {"no_pages": 1}
    world.run()


def test_who_has_fetched_waits_for_something_else() -> None:
    world = World(WorldConfig())
    world.submit([1] * 20, 5)
    (request,) = world.scheduler.alive()
    request.cached.waits_for_tier = True
    assert reasons(world) == {"fetching": 1}
    request.cached.fetch, request.cached.waits_for_tier = object(), False
    assert reasons(world) == {"in_line": 1}


def test_sessions_that_end_with_their_turn_are_counted() -> None:
    world = SessionWorld(WorldConfig())
    name = world.service.open()
    world.turn(name, [1, 2, 3], 8)
    world.step()
    assert world.service.num_closing == 0
    assert world.service.close(name).deferred
    assert world.service.num_closing == 1
    world.run()
    assert world.service.num_closing == 0
