"""The same world under hypothesis, which shrinks what it finds to the few events that matter."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.sim.world import Run, Session, World, WorldConfig

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class WorldMachine(RuleBasedStateMachine):
    @initialize(
        cache=st.sampled_from(["radix", "none"]),
        size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([0, 1, 3, 7]),
        pages=st.integers(12, 24),
        depth=st.integers(0, 2),
        publishes=st.booleans(),
        draft_pages=st.sampled_from([0, 5, 24]),
    )
    def build(
        self, cache: str, size: int, window: int, pages: int, depth: int, publishes: bool, draft_pages: int
    ) -> None:
        chunk = 2
        need = 2 * (-(-window // size) + 1) + -(-(chunk + 4) // size)
        context = pages * size if need <= pages else pages * size // 2
        self.world = World(
            WorldConfig(size, window, pages, pages, chunk, context, cache, publishes, depth, draft_pages=draft_pages)
        )

    @rule()
    def open(self) -> None:
        if len(self.world.sessions) < 3:
            self.world.open()

    @precondition(lambda self: self.idle() and len(self.world.running) < 3)
    @rule(which=st.integers(0, 9), tokens=TOKENS)
    def turn(self, which: int, tokens: list[int]) -> None:
        session = self.idle()[which % len(self.idle())]
        if len(session.history) + len(tokens) + 1 < self.world.config.context:
            self.world.start(np.array(tokens, dtype=np.int32), session)

    @precondition(lambda self: len(self.world.running) < 3)
    @rule(tokens=TOKENS)
    def plain(self, tokens: list[int]) -> None:
        self.world.start(np.array(tokens, dtype=np.int32))

    @precondition(lambda self: self.world.running)
    @rule(which=st.integers(0, 9), drafts=st.integers(0, 3), right=st.integers(0, 3), early=st.booleans())
    def step(self, which: int, drafts: int, right: int, early: bool) -> None:
        self.world.launch(self.running(which), self.world.config.chunk, drafts, min(right, drafts), early)

    @precondition(lambda self: self.world.flights)
    @rule()
    def retire(self) -> None:
        self.world.retire()

    @precondition(lambda self: self.world.running)
    @rule(which=st.integers(0, 9))
    def publish(self, which: int) -> None:
        self.world.publish(self.running(which))

    @precondition(lambda self: self.world.running)
    @rule(which=st.integers(0, 9), back=st.integers(-1, 3))
    def finish(self, which: int, back: int) -> None:
        run = self.running(which)
        if self.world.can_finish(run):
            self.world.finish(run, back)

    @precondition(lambda self: self.world.running or self.world.waiting)
    @rule(which=st.integers(0, 9))
    def abort(self, which: int) -> None:
        runs = [*self.world.running, *self.world.waiting]
        self.world.abort(runs[which % len(runs)])

    @precondition(lambda self: self.world.running)
    @rule(which=st.integers(0, 9))
    def retract(self, which: int) -> None:
        self.world.retract(self.running(which))

    @precondition(lambda self: self.world.waiting)
    @rule()
    def readmit(self) -> None:
        self.world.readmit(self.world.waiting[0])

    @precondition(lambda self: self.idle())
    @rule(which=st.integers(0, 9), share=st.integers(0, 100))
    def rewind(self, which: int, share: int) -> None:
        session = self.idle()[which % len(self.idle())]
        self.world.rewind(session, len(session.history) * share // 100)

    @precondition(lambda self: self.world.sessions)
    @rule(which=st.integers(0, 9))
    def close(self, which: int) -> None:
        sessions = list(self.world.sessions.values())
        self.world.close(sessions[which % len(sessions)])

    @invariant()
    def laws(self) -> None:
        self.world.audit()

    def teardown(self) -> None:
        self.world.wind_down()

    def idle(self) -> list[Session]:
        return [session for session in self.world.sessions.values() if session.run is None]

    def running(self, which: int) -> Run:
        return self.world.running[which % len(self.world.running)]


TestWorldMachine = WorldMachine.TestCase
TestWorldMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
