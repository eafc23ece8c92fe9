"""Many sessions under everything at once, from seeds: whatever happened in between, tokens are those of a run alone."""

import random
from collections import Counter
from dataclasses import dataclass

from tests.support.fake_backend import VOCAB_SIZE, expected_completion
from tests.support.session_world import SessionWorld
from tests.support.world import Record, WorldConfig

from sojourn.core.errors import ClientError
from sojourn.core.step import SamplingParams
from sojourn.engine.events import FinishReason
from sojourn.sessions.service import TurnParams

SESSIONS_MAX = 6


@dataclass
class Running:
    """A turn or a plain request, and what it must say if nobody ends it."""

    session_id: str | None
    record: Record
    prompt: list[int]
    expected: list[int]


class Storm:
    """Chance chooses a world and then events; the model beside it is a list of tokens per session."""

    def __init__(self, seed: int, reached: Counter[str]) -> None:
        self.chance = random.Random(seed)
        self.reached = reached
        pick = self.chance.choice
        page_size = pick([1, 4, 16])
        config = WorldConfig(
            cache=pick(["radix", "none"]),
            page_size=page_size,
            num_pages=pick([200, 300, 800]) // page_size,
            window=pick([0, 8, 32]),
            context=400,
            seqs_max=pick([1, 3, 8]),
            step_tokens_max=pick([8, 40, 100]),
            chunk_tokens_max=pick([5, 16, 64]),
            retract_every=pick([0, 0, 3, 7]),
        )
        self.world = SessionWorld(config, idle_timeout_s=pick([None, 50.0]))
        self.shared = self.tokens(60)
        self.histories: dict[str, list[int]] = {}
        self.running: list[Running] = []

    def tokens(self, count_max: int) -> list[int]:
        return [self.chance.randrange(VOCAB_SIZE) for _ in range(self.chance.randint(1, count_max))]

    def params(self) -> TurnParams:
        stop_ids = frozenset(self.tokens(1)) if self.chance.random() < 0.3 else frozenset()
        penalty = self.chance.choice([1.0, 1.1])
        sampling = SamplingParams(self.chance.choice([0.0, 1.0]), seed=len(self.running), repetition_penalty=penalty)
        return TurnParams(sampling, self.chance.randint(1, 30), stop_ids)

    def run(self, events: int) -> None:
        acts = [self.open, self.turn, self.turn, self.turn, self.step, self.step, self.finish, self.plain, self.abort]
        acts += [self.interrupt, self.rewind, self.fork, self.close, self.wait]
        for _ in range(events):
            try:
                self.chance.choice(acts)()
            except ClientError:
                self.reached["refusals"] += 1
            self.settle()
        self.world.run(40_000)
        self.settle()
        assert not self.running
        statistics = self.world.slots.slot_statistics()
        self.reached["resumes"] += statistics.resumes
        self.reached["demotions"] += statistics.demotions
        self.reached["retractions"] += self.world.world.scheduler.statistics().retractions
        self.world.close_all()

    def settle(self) -> None:
        """Compare what has ended, and every history, with the model."""
        if self.world.service.has_work:
            self.world.step()
        for turn in [turn for turn in self.running if turn.record.end is not None]:
            self.running.remove(turn)
            reason, said = turn.record.reason, turn.record.tokens
            self.reached[reason.value] += 1
            assert said == (
                turn.expected if reason in (FinishReason.STOP, FinishReason.LENGTH) else turn.expected[: len(said)]
            )
            if turn.session_id is not None and reason is not FinishReason.ABORT:
                self.histories[turn.session_id] = turn.prompt + said
        alive = self.world.service.session_ids()
        busy = {turn.session_id for turn in self.running}
        for session_id in alive:
            if session_id not in busy:
                assert self.world.history(session_id) == self.histories[session_id]

    def any_session(self) -> str:
        return self.chance.choice(self.world.service.session_ids() or ("nobody",))

    # -- events

    def open(self) -> None:
        if len(self.world.service.session_ids()) < SESSIONS_MAX:
            self.histories[self.world.service.open()] = []

    def turn(self) -> None:
        session_id, params = self.any_session(), self.params()
        new = self.shared[: self.chance.randrange(30)] + self.tokens(40)
        prompt = self.histories.get(session_id, []) + new
        record = self.world.turn(session_id, new, params)
        self.running.append(Running(session_id, record, prompt, self.expected(prompt, params)))

    def plain(self) -> None:
        prompt, params = self.shared[: self.chance.randrange(60)] + self.tokens(60), self.params()
        self.running.append(Running(None, self.world.submit(prompt, params), prompt, self.expected(prompt, params)))

    def expected(self, prompt: list[int], params: TurnParams) -> list[int]:
        count = min(params.max_new_tokens or 0, self.world.world.config.context - len(prompt))
        return expected_completion(prompt, count, params.stop_ids, params.sampling)

    def step(self) -> None:
        self.world.step(self.chance.randrange(6))

    def finish(self) -> None:
        self.world.run(40_000)

    def abort(self) -> None:
        self.world.service.abort(self.any_session())

    def interrupt(self) -> None:
        self.world.service.interrupt(self.any_session())

    def rewind(self) -> None:
        session_id = self.any_session()
        length = self.chance.randint(0, len(self.histories.get(session_id, [])))
        self.world.service.rewind(session_id, length=length)
        self.histories[session_id] = self.histories[session_id][:length]
        self.reached["rewinds"] += 1

    def fork(self) -> None:
        session_id = self.any_session()
        if len(self.world.service.session_ids()) < SESSIONS_MAX:
            length = self.chance.randint(0, len(self.histories.get(session_id, [])))
            fork = self.world.service.fork(session_id, length=length)
            self.histories[fork] = self.histories[session_id][:length]
            self.reached["forks"] += 1

    def close(self) -> None:
        if self.world.service.close(self.any_session()).deferred:
            self.reached["deferred closes"] += 1

    def wait(self) -> None:
        self.world.clock.now += self.chance.choice([1.0, 30.0, 60.0])


def test_a_storm_leaves_every_history_exact_and_every_page_accounted() -> None:
    reached: Counter[str] = Counter()
    for seed in range(60):
        Storm(seed, reached).run(events=60)
    marks = [
        "resumes",
        "demotions",
        "retractions",
        "rewinds",
        "forks",
        "stop",
        "length",
        "interrupt",
        "abort",
        "refusals",
    ]
    missing = [mark for mark in [*marks, "deferred closes"] if not reached[mark]]
    assert not missing, f"never reached: {missing} in {reached}"
