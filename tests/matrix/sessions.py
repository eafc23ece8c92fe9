"""Two conversations of four turns on one engine, side by side: one greedy, one drawn; each turn against a stateless run.

    turn 1   a prompt that repeats itself, to the length limit        turn 3   undone after some tokens
    turn 2   to a token that ends it, in the middle of a run          turn 4   to a stop string, or the length limit

The tokens are the same in every cell, so each stateless run is needed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sojourn.core.step import Sample, SamplingParams
from sojourn.engine.events import FinishReason
from sojourn.models.store import LoadedModel
from sojourn.sessions.service import TurnParams
from tests.e2e.engines import Heard, RealEngine, Shape, run_alone

UNDONE = 2  # the turn that is aborted
LIMITS = (14, 16, 12, 12)  # tokens of each turn
ABORT_AFTER = 4  # tokens
GREEDY = SamplingParams(num_logprobs=2)
DRAWN = SamplingParams(0.7, top_k=20, top_p=0.95, repetition_penalty=1.05, seed=11, num_logprobs=0)


@dataclass
class StopAt:
    """Stops where these tokens are said in a row: what a stop string is to the scheduler."""

    tokens: tuple[int, ...]
    seen: list[int] = field(default_factory=list)

    def feed(self, token_id: int) -> str | None:
        self.seen.append(token_id)
        return "here" if tuple(self.seen[-len(self.tokens) :]) == self.tokens else None


@dataclass(frozen=True)
class Answer:
    samples: list[Sample]
    reason: FinishReason

    @property
    def tokens(self) -> list[int]:
        return [sample.token for sample in self.samples]

    @property
    def exact(self) -> list[object]:
        """Tokens, and every bit of the log-probabilities."""
        return [(s.token, s.logprob, s.top) for s in self.samples]


class Stateless:
    """What a model says to a prompt when nothing else is going on. Remembers what it was asked."""

    def __init__(self, model: LoadedModel, shape: Shape) -> None:
        self._model = model
        self._shape = shape
        self._answers: dict[tuple[object, ...], Answer] = {}

    def answer(self, prompt: Sequence[int], sampling: SamplingParams, limit: int, ending: "Ending") -> Answer:
        asked = (tuple(prompt), sampling, limit, ending)
        if asked not in self._answers:
            samples, reason = run_alone(self._model, self._shape, prompt, ending.params(sampling, limit))
            self._answers[asked] = Answer(samples, reason)
        return self._answers[asked]


@dataclass(frozen=True)
class Ending:
    """How a turn may end before its limit."""

    stop_ids: frozenset[int] = frozenset()
    string: tuple[int, ...] = ()

    def params(self, sampling: SamplingParams, limit: int) -> TurnParams:
        matcher = StopAt(self.string) if self.string else None
        return TurnParams(sampling, limit, self.stop_ids, ignore_eos=True, stop_matcher=matcher)


class Talk:
    """One conversation."""

    def __init__(self, engine: RealEngine, stateless: Stateless, sampling: SamplingParams, first: int) -> None:
        self.engine = engine
        self.stateless = stateless
        self.sampling = sampling
        self.session_id = engine.service.open()
        self.history: list[int] = []
        self.news = [
            list(range(first, first + 9)) * 4,
            [first + 20, first, first + 1],
            [first + 3] * 5,
            [first, first + 1],
        ]
        self.is_undone = False

    def start(self, turn: int) -> None:
        self.turn, self.prompt = turn, self.history + self.news[turn]
        said = self.stateless.answer(self.prompt, self.sampling, LIMITS[turn], Ending()).tokens
        self.ending = Ending()
        if turn == 1:
            self.ending = Ending(stop_ids=frozenset(said[7:8]))
        if turn == 3:
            self.ending = Ending(string=tuple(said[5:7]))
        params = self.ending.params(self.sampling, LIMITS[turn])
        request_id = self.engine.service.start_turn(self.session_id, self.news[turn], params)
        self.heard: Heard = self.engine.listen(request_id)

    def look(self) -> None:
        """Undo the turn that is to be undone, once it has said something."""
        if self.turn == UNDONE and len(self.heard.tokens) >= ABORT_AFTER and self.heard.end is None:
            assert self.engine.service.abort(self.session_id)

    def check(self, *, is_calm: bool) -> None:
        end = self.heard.end
        assert end is not None
        alone = self.stateless.answer(self.prompt, self.sampling, LIMITS[self.turn], self.ending)
        said = Answer(self.heard.samples, end.reason)
        if self.turn == UNDONE:
            assert said.reason is FinishReason.ABORT
            assert said.exact == alone.exact[: len(said.samples)]
            assert len(said.samples) >= ABORT_AFTER
        else:
            assert said.exact == alone.exact
            assert said.reason is alone.reason
            self.history = self.prompt + said.tokens
        assert end.usage.prompt_tokens == len(self.prompt)
        assert end.usage.completion_tokens == len(said.samples)
        if is_calm and self.turn > 0:
            settled = len(self.prompt) - len(self.news[self.turn])
            # The last token of a turn has no KV, unless it was a draft that stood, or was read by a turn that was undone.
            assert settled - 1 <= end.usage.cached_tokens <= settled
        assert self.engine.service.history(self.session_id).token_ids.tolist() == self.history
        self.check_pages()

    def check_pages(self) -> None:
        """Nothing is kept past the last token whose KV is of use."""
        slot = self.engine.cache.slot(self.session_id)
        assert slot is not None
        holdings = [(slot.holding, self.engine.cache.book), (slot.draft, self.engine.cache.draft_book)]
        for holding, book in holdings:
            if holding is None or book is None:
                continue
            size = book.layout.page_size
            assert holding.kv_committed_len <= len(self.history)
            assert holding.kv_allocated_len <= len(self.history)
            for pages in holding.lists:
                past = pages.pages[-(-len(self.history) // size) :]
                assert len(past) == 0, f"{len(past)} pages past the finish"


def converse(engine: RealEngine, stateless: Stateless, *, is_calm: bool) -> None:
    talks = [Talk(engine, stateless, GREEDY, 300), Talk(engine, stateless, DRAWN, 700)]
    for turn in range(len(LIMITS)):
        for talk in talks:
            talk.start(turn)
        while engine.service.has_work:
            engine.step()
            for talk in talks:
                talk.look()
        for talk in talks:
            talk.check(is_calm=is_calm)
    for talk in talks:
        assert not engine.service.close(talk.session_id).deferred
