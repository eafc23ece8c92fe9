"""One random engine and a few conversations on it, drawn from a seed; every turn is compared with a stateless run."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sojourn.core.errors import ClientError, CorruptionError
from sojourn.core.step import Sample, SamplingParams
from sojourn.engine.events import FinishReason
from sojourn.models.store import LoadedModel
from sojourn.sessions.service import TurnParams
from sojourn.spec.ngram import NgramDrafter
from tests.e2e.engines import Heard, RealEngine, Shape, run_alone
from tests.support.world import check_all_free, check_identity

SESSIONS_MAX = 4
MARKS = (
    "resumes",
    "rematches",
    "demotions",
    "retractions",
    "zombies",
    "drafts accepted",
    "drafts rejected",
    "batched",
    "aborts",
    "interrupts",
    "rewinds",
    "forks",
    "plain requests",
    "empty turns",
    "deferred closes",
    "sampled",
    "prefixes shared",
    "window slides",
)


@dataclass
class Running:
    """A turn, or a plain request, that has not ended."""

    session_id: str | None
    heard: Heard
    prompt: list[int]
    params: TurnParams


class Conversations:
    """The model beside the engine is a list of tokens per session."""

    def __init__(self, case: str, model: LoadedModel, *, is_long: bool) -> None:
        self.case = case
        self.chance = random.Random(case)
        self.is_long = is_long  # past a window of 512
        self.model = model
        self.shape = self._draw_shape()
        self.engine = RealEngine(model, self.shape, NgramDrafter() if self.shape.drafts_max else None)
        self.vocab_size = model.packed.config.vocab_size
        self.opening = self._tokens(40, 60)  # what several conversations begin with
        self.histories: dict[str, list[int]] = {}
        self.running: list[Running] = []
        self.reached: Counter[str] = Counter()
        self.story: list[str] = []

    def _draw_shape(self) -> Shape:
        pick = self.chance.choice
        page_size = pick([1, 4, 16, 64])
        context = pick([640, 700]) if self.is_long else pick([130, 200, 260])
        need = -(-context // page_size)
        full = int(need * pick([1, 1.3, 2]))
        chunk = pick([200, 300]) if self.is_long else pick([7, 16, 50, 128])
        seqs_max = pick([1, 3, 3, 6])
        return Shape(
            page_size=page_size,
            pages=(full, pick([need, full])),
            context=context,
            chunk=chunk,
            step_tokens=max(seqs_max, pick([chunk, chunk + 5, 2 * chunk])),
            seqs_max=seqs_max,
            cache=pick(["radix", "radix", "none"]),
            kv_dtype=pick(["f16", "f16", "f32"]),
            threads=pick([1, 2]),
            retract_every=0 if self.is_long else pick([0, 0, 3, 7, 13]),
            depth=pick([0, 1]),
            drafts_max=pick([0, 3, 8]),
        )

    def run(self, turns: int) -> Counter[str]:
        """Events until that many turns and plain requests were started; then everything closes and every page is free."""
        try:
            self._open()
            self._open()
            while self.reached["turns"] < turns:
                self._choose()()
                self._settle()
            self.engine.run()
            self._settle()
            assert not self.running, "a turn never ended"
            self._count()
            for session_id in self.engine.service.session_ids():
                assert not self.engine.service.close(session_id).deferred
            check_identity(self.engine.cache)
            check_all_free(self.engine.cache)
        except (AssertionError, CorruptionError) as error:
            report = self.engine.loop.report(error) if isinstance(error, CorruptionError) else ""
            again = f"""to repeat it: make e2e ARGS="-k '{self.case}'" """
            error.add_note("\n".join([report, again, str(self.shape), *self.story]))
            raise
        finally:
            self.engine.close()
        return self.reached

    # -- events

    def _choose(self) -> Callable[[], None]:
        acts: dict[Callable[[], None], int] = {
            self._turn: 8,
            self._step: 8,
            self._finish: 1,
            self._open: 1,
            self._plain: 1,
            self._abort: 2,
            self._interrupt: 1,
            self._rewind: 1,
            self._fork: 1,
            self._close: 1,
        }
        return self.chance.choices(list(acts), list(acts.values()))[0]

    def _open(self) -> None:
        if len(self.engine.service.session_ids()) < (2 if self.is_long else SESSIONS_MAX):
            session_id = self.engine.service.open()
            self.histories[session_id] = []
            self._tell(f"open {session_id}")

    def _turn(self) -> None:
        idle = [name for name in self.engine.service.session_ids() if name not in self._busy()]
        session_id = self.chance.choice(idle) if idle else self._any_session()  # which is refused
        history = self.histories.get(session_id, [])
        if history:
            new = self.chance.choice([self._tokens(1, 12), self._tokens(10, 40), []])
        elif self.is_long:
            new = self.opening + self._tokens(460, 520)
        else:
            new = self.opening[: self.chance.choice([0, 30, 60])] + self._tokens(1, 40)
        params = self._params()
        self._tell(f"turn of {session_id}: {len(history)} + {len(new)} tokens, {params}")
        try:
            request_id = self.engine.service.start_turn(session_id, new, params)
        except ClientError as refusal:
            self._refused(refusal)
            if session_id in self.histories and session_id not in self._busy() and len(history) > 0:
                self._cut(session_id, self.chance.randrange(len(history)))  # it is full: go back
            return
        self.reached["turns"] += 1
        self.reached["empty turns"] += not new
        self.running.append(Running(session_id, self.engine.listen(request_id), history + new, params))

    def _plain(self) -> None:
        prompt, params = self.opening + self._tokens(1, 30), self._params()
        self._tell(f"plain request: {len(prompt)} tokens, {params}")
        request_id = self.engine.service.submit(prompt, params)
        self.reached["turns"] += 1
        self.reached["plain requests"] += 1
        self.running.append(Running(None, self.engine.listen(request_id), prompt, params))

    def _step(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            self._one_step()

    def _one_step(self) -> None:
        self.engine.step()
        self.reached["batched"] += self.engine.scheduler.statistics().running > 1
        self.reached["window slides"] += self._has_slid()

    def _finish(self) -> None:
        self._tell("run to the end")
        self.engine.run()

    def _abort(self) -> None:
        busy = sorted(turn.session_id for turn in self.running if turn.session_id is not None)
        if busy:
            session_id = self.chance.choice(busy)
            self._tell(f"abort {session_id}")
            self.reached["aborts"] += self.engine.service.abort(session_id)

    def _interrupt(self) -> None:
        busy = sorted(turn.session_id for turn in self.running if turn.session_id is not None)
        if busy:
            session_id = self.chance.choice(busy)
            self._tell(f"interrupt {session_id}")
            self.reached["interrupts"] += self.engine.service.interrupt(session_id)

    def _rewind(self) -> None:
        session_id = self._any_session()
        if self.histories.get(session_id) and session_id not in self._busy():
            self._cut(session_id, self.chance.randrange(len(self.histories[session_id])))

    def _cut(self, session_id: str, length: int) -> None:
        self._tell(f"rewind {session_id} to {length}")
        self.engine.service.rewind(session_id, length=length)
        self.histories[session_id] = self.histories[session_id][:length]
        self.reached["rewinds"] += 1

    def _fork(self) -> None:
        session_id = self._any_session()
        if self.histories.get(session_id) and len(self.engine.service.session_ids()) < SESSIONS_MAX:
            length = self.chance.randint(1, len(self.histories[session_id]))
            fork = self.engine.service.fork(session_id, length=length)
            self._tell(f"fork {session_id} at {length}: {fork}")
            self.histories[fork] = self.histories[session_id][:length]
            self.reached["forks"] += 1

    def _close(self) -> None:
        session_id = self._any_session()
        try:
            reply = self.engine.service.close(session_id)
        except ClientError as refusal:
            self._refused(refusal)
            return
        self._tell(f"close {session_id}: {reply}")
        self.reached["deferred closes"] += reply.deferred

    # -- what must hold

    def _settle(self) -> None:
        """Compare what has ended with its stateless run, and every history with the model."""
        if self.engine.service.has_work:
            self._one_step()
        for turn in [turn for turn in self.running if turn.heard.end is not None]:
            self.running.remove(turn)
            self._compare(turn)
            if turn.session_id is not None and turn.heard.reason is not FinishReason.ABORT:
                self.histories[turn.session_id] = turn.prompt + turn.heard.tokens
        busy = self._busy()
        for session_id in self.engine.service.session_ids():
            if session_id not in busy:
                told = self.engine.service.history(session_id).token_ids.tolist()
                assert told == self.histories[session_id], f"the history of {session_id} is another"

    def _compare(self, turn: Running) -> None:
        said, end = turn.heard.samples, turn.heard.end
        assert end is not None
        self.reached["prefixes shared"] += end.usage.cached_source == "prefix"
        self.reached["sampled"] += turn.params.sampling.temperature > 0
        is_whole = end.reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._tell(f"  {turn.session_id} ended by {end.reason.value} after {len(said)} tokens, {end.usage}")
        if not said and not is_whole:
            return
        count = turn.params.max_new_tokens if is_whole else len(said)
        params = TurnParams(turn.params.sampling, count, ignore_eos=turn.params.ignore_eos)
        alone, reason = run_alone(self.model, self.shape, turn.prompt, params)
        assert _exact(said) == _exact(alone), "tokens are not those of the stateless run"
        assert not is_whole or end.reason is reason, f"ended by {end.reason}, alone by {reason}"

    def _count(self) -> None:
        slots, scheduler = self.engine.cache.slot_statistics(), self.engine.scheduler.statistics()
        self.reached["resumes"] += slots.resumes
        self.reached["rematches"] += slots.rematches
        self.reached["demotions"] += slots.demotions
        self.reached["retractions"] += scheduler.retractions
        self.reached["zombies"] += scheduler.zombies
        self.reached["drafts accepted"] += scheduler.accepted
        self.reached["drafts rejected"] += scheduler.drafted - scheduler.accepted

    # -- choices

    def _tokens(self, least: int, most: int) -> list[int]:
        return [self.chance.randrange(self.vocab_size) for _ in range(self.chance.randint(least, most))]

    def _params(self) -> TurnParams:
        """Always with the sampled token's log-probability."""
        seed = self.chance.randrange(2**63)
        sampling = self.chance.choice(
            [
                SamplingParams(num_logprobs=0),
                SamplingParams(0.8, top_k=40, top_p=0.95, seed=seed, num_logprobs=0),
                SamplingParams(
                    1.2, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.5, seed=seed, num_logprobs=0
                ),
            ]
        )
        return TurnParams(sampling, self.chance.choice([0, 1, 4, 8, 12, 24]), ignore_eos=self.chance.random() < 0.5)

    def _any_session(self) -> str:
        return self.chance.choice(self.engine.service.session_ids() or ("nobody",))

    def _busy(self) -> set[str | None]:
        return {turn.session_id for turn in self.running}

    def _has_slid(self) -> bool:
        return any(holding.swa_evicted_seqlen for holding in self.engine.cache.book.holdings.values())

    def _refused(self, refusal: ClientError) -> None:
        self._tell(f"  refused: {refusal}")
        self.reached["refusals"] += 1

    def _tell(self, what: str) -> None:
        self.story.append(what)


def _exact(samples: list[Sample]) -> list[tuple[int, str]]:
    """Tokens and the bits of their log-probabilities."""
    return [(sample.token, "" if sample.logprob is None else sample.logprob.hex()) for sample in samples]
