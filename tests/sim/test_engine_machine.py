"""The engine's world under hypothesis, which shrinks what it finds to the few events that matter."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sojourn.sessions.service import TurnParams
from tests.sim.engine_world import Ask, EngineWorld
from tests.support.world import WorldConfig

TOKENS = st.lists(st.integers(0, 1), max_size=9)
ASKS = st.builds(
    lambda count, stop_after: Ask(TurnParams(max_new_tokens=count), stop_after), st.integers(0, 8), st.integers(0, 4)
)
INDEX = st.integers(0, 9)


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        cache=st.sampled_from(["radix", "none"]),
        size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([0, 1, 3, 7]),
        pages=st.integers(12, 24),
        chunk=st.integers(1, 6),
        seqs=st.integers(1, 4),
        retract_every=st.sampled_from([0, 0, 1, 3]),
        depth=st.integers(0, 2),
        drafts_max=st.sampled_from([0, 1, 3, 8]),
        drafts_right=st.sampled_from([0.0, 0.7, 1.0]),
        draft_pages=st.sampled_from([0, 5, 24]),
        runs_early=st.booleans(),
        publishes=st.booleans(),
        tier_seed=st.sampled_from([None, 0, 1, 2, 3]),
    )
    def build(
        self,
        cache: str,
        size: int,
        window: int,
        pages: int,
        chunk: int,
        seqs: int,
        retract_every: int,
        depth: int,
        drafts_max: int,
        drafts_right: float,
        draft_pages: int,
        runs_early: bool,
        publishes: bool,
        tier_seed: int | None,
    ) -> None:
        config = WorldConfig(
            cache=cache,
            page_size=size,
            num_pages=pages,
            window=window,
            context=pages * size,
            seqs_max=seqs,
            step_tokens_max=seqs + chunk + drafts_max,
            chunk_tokens_max=chunk,
            retract_every=retract_every,
            drafts_max=drafts_max,
            drafts_right=drafts_right,
            draft_pages=draft_pages if drafts_max else 0,
            runs_early=runs_early,
            tier_seed=tier_seed,
        )
        self.world = EngineWorld(config, depth=depth, publishes=publishes, idle_timeout_s=30.0)

    @rule()
    def open(self) -> None:
        if len(self.world.known) < 3:
            self.world.open("", None)

    @precondition(lambda self: self.world.known and len(self.world.alive) < 4)
    @rule(which=INDEX, new=TOKENS, ask=ASKS)
    def turn(self, which: int, new: list[int], ask: Ask) -> None:
        self.world.turn(self.session(which), new, ask)

    @precondition(lambda self: len(self.world.alive) < 4)
    @rule(prompt=TOKENS, ask=ASKS)
    def plain(self, prompt: list[int], ask: Ask) -> None:
        self.world.plain(prompt, ask, "")

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    @precondition(lambda self: self.world.alive)
    @rule(which=INDEX, undo=st.booleans())
    def end(self, which: int, undo: bool) -> None:
        alive = list(self.world.alive.values())
        self.world.end(alive[which % len(alive)], undo=undo)

    @precondition(lambda self: self.world.known)
    @rule(which=INDEX, share=st.integers(0, 100))
    def rewind(self, which: int, share: int) -> None:
        name = self.session(which)
        self.world.rewind(name, len(self.world.known[name].history) * share // 100)

    @precondition(lambda self: self.world.known)
    @rule(which=INDEX, share=st.integers(0, 100))
    def fork(self, which: int, share: int) -> None:
        name = self.session(which)
        self.world.fork(name, len(self.world.known[name].history) * share // 100)

    @precondition(lambda self: self.world.known)
    @rule(which=INDEX)
    def close(self, which: int) -> None:
        self.world.close(self.session(which))

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.world.clock.now += seconds

    @invariant()
    def laws(self) -> None:
        self.world.check.check()
        self.world.audit()

    def teardown(self) -> None:
        self.world.wind_down()

    def session(self, which: int) -> str:
        names = list(self.world.known)
        return names[which % len(names)]


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
