"""A wedge is a broken law: made by taking a running request out of every plan, as a lost result would."""

import pytest
from tests.support.world import World, WorldConfig

from sojourn.audit.watchdog import COVERED_MAX, LOOK_EVERY, UNTRIED_STEPS, WEDGED_AFTER_S
from sojourn.core.errors import CorruptionError
from sojourn.scheduler.admission import RETRY_STEPS, Admission


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


# -- pages that could be had while others run


class Withholding:
    """Says yes to nobody who waits, whatever pages there are: as an admission that forgot whom it may have them from."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = False
        admit = world.cache.admit
        monkeypatch.setattr(world.cache, "admit", lambda *args: not self.is_on and admit(*args))


def test_a_request_that_is_refused_pages_that_could_be_had_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(WorldConfig(context=2048, num_pages=256))
    withholding = Withholding(world, monkeypatch)
    world.submit([1, 2, 3], 1000)
    world.step()
    waiting = world.submit([4, 5, 6], 4)
    withholding.is_on = True
    with pytest.raises(CorruptionError, match=f"{waiting} waits for pages up to 3 tokens, which could be had"):
        for _ in range(2 * RETRY_STEPS * (LOOK_EVERY + COVERED_MAX)):
            world.step()


def test_a_request_that_is_not_tried_at_all_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(WorldConfig(context=2048, num_pages=256))
    withholding = Withholding(world, monkeypatch)
    world.submit([1, 2, 3], 1000)
    world.step()
    waiting = world.submit([4, 5, 6], 4)
    withholding.is_on = True
    world.step()
    monkeypatch.setattr(Admission, "open", lambda *args: iter(()))
    with pytest.raises(CorruptionError, match=f"{waiting} waits and was not tried in {UNTRIED_STEPS + 1} steps"):
        for _ in range(2 * UNTRIED_STEPS):
            world.step()


def test_who_waits_for_pages_that_are_in_use_is_not_wedged() -> None:
    world = World(WorldConfig(context=1024, num_pages=64))
    first = world.submit([1, 2, 3], 1000)
    for _ in range(400):
        world.step()
    second = world.submit(list(range(60)) * 12, 4)
    world.run()
    assert world.records[first].end is not None
    assert world.records[second].end is not None
