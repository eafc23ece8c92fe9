"""What is told of the store of sessions, for whoever watches it."""

from collections.abc import Sequence

import pytest
from tests.sessions.test_durable import SMALL, FailingStore, alive, prompt
from tests.support.session_world import SessionWorld

from sojourn.sessions.recorder import KeptStatistics
from sojourn.sessions.shelf import bytes_of
from sojourn.sessions.store import StoreError, StoreEvent


class SlowStore(FailingStore):
    """A group takes it a quarter of a second of the world's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.world: SessionWorld | None = None

    def commit(self, events: Sequence[StoreEvent]) -> None:
        if self.world is not None:
            self.world.clock.now += 0.25
        super().commit(events)


def test_what_the_store_has_and_how_long_it_took_is_counted() -> None:
    store = SlowStore()
    world = SessionWorld(SMALL, store=store, bytes_max=100_000)
    store.world = world

    def told() -> KeptStatistics:
        kept = world.service.kept()
        assert kept is not None
        return kept

    assert (told().num_sessions, told().num_bytes, told().bytes_max, told().seconds.total) == (0, 0, 100_000, 0)
    for name in ("a", "b"):
        world.service.open(name)
    world.turn("a", prompt(9), 7)
    world.run()
    assert told().num_sessions == 2
    assert told().num_bytes == sum(bytes_of(one.turns) for one in alive(world.service))
    assert (sum(told().seconds.counts), told().failed) == (len(store.groups), 0) == (3, 0)
    assert told().seconds.total == pytest.approx(0.75)
    store.fails = True
    with pytest.raises(StoreError):
        world.service.close("a")
    assert (sum(told().seconds.counts), told().failed, told().num_sessions) == (4, 1, 2)
    store.fails = False
    world.service.close("a")
    assert (sum(told().seconds.counts), told().failed, told().num_sessions) == (5, 1, 1)
    assert SessionWorld(SMALL).service.kept() is None
    world.close_all()
