"""The engine's side of the wire without the wire: what it answers when the store takes one thing and refuses the next."""

from collections.abc import Sequence

import pytest
from tests.api.test_link import never, start_of
from tests.support.session_world import SessionWorld
from tests.support.world import WorldConfig

from sojourn.api import wire
from sojourn.api.desk import EngineDesk
from sojourn.engine.events import Notice
from sojourn.sessions.store import NoStore, Rewound, StoreError, StoreEvent


class NoRewinds(NoStore):
    """Takes everything else."""

    def commit(self, events: Sequence[StoreEvent]) -> None:
        if any(isinstance(event, Rewound) for event in events):
            raise StoreError("the disk is full")


def test_an_answer_that_could_not_be_cut_is_told_whole() -> None:
    world = SessionWorld(WorldConfig(page_size=16, num_pages=200, context=512), store=NoRewinds())
    told: list[wire.Event] = []
    desk = EngineDesk(world.service, world.world.loop, world.slots, never, world.clock, told.append)

    def step() -> None:
        for event in world.service.step():
            assert not isinstance(event, Notice)
            desk.take(2, event)

    desk.obey(1, wire.OpenSession("a", "", None))
    desk.start(2, start_of([1, 2, 3], 40, "a"))
    while sum(len(event.ids) for event in told if isinstance(event, wire.Tokens)) < 6:
        step()
    with pytest.raises(StoreError, match="the turn has ended, and all that it said stands: the disk is full"):
        desk.obey(3, wire.Interrupt("a", "", 2))
    step()
    end = told[-1]
    assert isinstance(end, wire.Ended)
    assert (end.reason, end.is_unstored) == ("interrupt", False)
    shown = desk.obey(4, wire.ShowSession("a", ""))
    assert isinstance(shown, wire.SessionInfo)
    assert (end.kept, shown.num_tokens) == (end.usage.completion_tokens, 3 + end.kept)
    assert end.kept >= 6
