"""A wedge is a broken law: made by taking a running request out of every plan, as a lost result would."""

import pytest
from tests.support.world import World, WorldConfig

from sojourn.audit.watchdog import WEDGED_AFTER_S
from sojourn.core.errors import CorruptionError


def wedged(seqs_max: int = 4) -> World:
    """Its one request has run a step, and from now on counts as in flight for ever."""
    world = World(WorldConfig(seqs_max=seqs_max))
    world.submit([1, 2, 3], 8)
    world.step()
    (request,) = world.scheduler.running()
    request.num_launched = request.length_max
    return world


def test_nothing_runs_for_too_long() -> None:
    world = wedged()
    world.step()
    world.clock.now += WEDGED_AFTER_S
    world.step()
    world.clock.now += 0.5
    with pytest.raises(
        CorruptionError, match=r"waits, nothing has run for 20.5 s, and \d+ pages could be had"
    ) as broken:
        world.step()
    report = world.loop.report(broken.value)
    assert "pool FULL" in report
    assert "num_launched=11" in report


def test_those_who_wait_behind_it_are_told_of_too() -> None:
    world = wedged(seqs_max=1)
    world.submit([4, 5], 8)
    world.step()
    world.clock.now += WEDGED_AFTER_S + 1
    with pytest.raises(CorruptionError, match="nothing has run"):
        world.step()


def test_while_another_runs_nothing_is_wedged() -> None:
    world = wedged()
    world.submit([4, 5], 8)
    for _ in range(8):
        world.clock.now += WEDGED_AFTER_S + 1  # slow, but they run
        world.step()
    world.step()  # from here on there is nothing to run, since this moment
    world.clock.now += WEDGED_AFTER_S + 1
    with pytest.raises(CorruptionError, match="nothing has run"):
        world.step()


def test_long_idleness_is_no_wedge() -> None:
    world = World(WorldConfig())
    world.run()
    world.clock.now += 1000 * WEDGED_AFTER_S
    world.step()
    request_id = world.submit([1, 2, 3], 4)
    world.run()
    assert world.records[request_id].end is not None
