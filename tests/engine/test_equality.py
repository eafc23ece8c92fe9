"""The same samples, bit for bit, with steps that overlap and without, whoever guesses: tiny models on the native core.

Each case is a handful of requests at once on a pool they have to share, beside each request alone on a fresh engine.
"""

import itertools
import random
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
from tests.backends.tiny import VOCAB, gemma, llama, random_model
from tests.support.fixed_drafts import FixedDrafts
from tests.support.world import ManualClock, check_all_free, check_identity

from sojourn.audit.policy import MemCheck, StrictMemCheck
from sojourn.backends.native import NativeBackend
from sojourn.cache.protocol import CacheKey
from sojourn.cache.radix import RadixCache
from sojourn.core.ids import RequestId, SeqId
from sojourn.core.step import Sample, SamplingParams, TokenArray
from sojourn.engine.events import FinishedEvent, FinishReason, TokensEvent
from sojourn.engine.loop import EngineLoop
from sojourn.models.packed import MatrixKind, PackedModel
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import NUM_RESERVED, PoolLayout
from sojourn.runner.runner import Runner
from sojourn.scheduler.request import StopConditions, make_request
from sojourn.scheduler.scheduler import Scheduler, SchedulerConfig
from sojourn.spec.ngram import NgramDrafter
from sojourn.spec.protocol import DraftAsk, Drafter, NoDrafter

CONTEXT = 200
DRAFTS_MAX = 4
MODELS = {name: random_model(config, MatrixKind.Q8) for name, config in (("llama", llama()), ("gemma", gemma()))}
SAMPLINGS = (
    SamplingParams(num_logprobs=2),
    SamplingParams(0.9, top_k=20, top_p=0.9, seed=11, num_logprobs=0),
    SamplingParams(
        1.1, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3, seed=-5, num_logprobs=0
    ),
    SamplingParams(logit_bias=((7, 2.0), (8, -3.0)), frequency_penalty=0.6, num_logprobs=1),
)


@dataclass(frozen=True)
class Ask:
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()


@dataclass
class Heard:
    samples: list[Sample] = field(default_factory=list)
    reason: FinishReason | None = None


class Replay(NoDrafter):
    """Was told what each request will say, and is wrong now and then."""

    name = "replay"

    def __init__(self, lines: Sequence[tuple[int, ...]], seed: int) -> None:
        self._lines = lines
        self._rng = random.Random(seed)
        self._at: dict[SeqId, tuple[tuple[int, ...], int]] = {}

    def begin(self, seq: SeqId, lineage: Hashable, tokens: TokenArray) -> None:
        known = tuple(tokens.tolist())
        self._at[seq] = next(line for line in self._lines if line[: len(known)] == known), len(known)

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        line, at = self._at[seq]
        self._at[seq] = line, at + len(tokens)

    def propose(self, asks: Sequence[DraftAsk]) -> list[tuple[int, ...]]:
        return [tuple(self._maybe(token) for token in self._after(ask)) for ask in asks]

    def _after(self, ask: DraftAsk) -> tuple[int, ...]:
        line, at = self._at[ask.seq]
        return line[at : at + ask.num_max]

    def _maybe(self, token: int) -> int:
        return token if self._rng.random() < 0.8 else (token + 1) % VOCAB


@dataclass(frozen=True)
class Shape:
    page_size: int = 16
    chunk: int = 64
    seqs_max: int = 4
    retract_every: int = 0
    depth: int = 0
    share: float = 1.0  # of what all requests would need at most


def run(model: PackedModel, asks: Sequence[Ask], shape: Shape, drafter: Drafter | None) -> list[Heard]:
    clock, layout = ManualClock(), PoolLayout(shape.page_size, model.config.attention.sliding_window)
    pages = int(layout.pages_for(CONTEXT) * max(1.0, shape.share * len(asks))) + NUM_RESERVED
    cache = RadixCache(HoldingBook(layout, [pages] * layout.num_pools))
    backend = NativeBackend(
        model,
        page_size=shape.page_size,
        num_pages=(pages, pages if layout.num_pools > 1 else NUM_RESERVED),
        kv_dtype="f16",
        threads=1,
        seqs_max=shape.seqs_max,
    )
    step_tokens = shape.chunk + shape.seqs_max * (1 + DRAFTS_MAX)
    settings = SchedulerConfig(CONTEXT, shape.seqs_max, step_tokens, shape.chunk, shape.retract_every)
    scheduler = Scheduler(cache, settings, clock, None if drafter is None else FixedDrafts(DRAFTS_MAX))
    executor = ThreadPoolExecutor(1) if shape.depth else None
    loop = EngineLoop(
        scheduler,
        Runner(backend, clock, drafter=drafter, executor=executor),
        cache,
        clock,
        mem_check=MemCheck(cache, StrictMemCheck.EVERY_STEP, clock),
        depth=shape.depth,
    )
    heard = {RequestId(str(number)): Heard() for number in range(len(asks))}
    for request_id, ask in zip(heard, asks, strict=True):
        loop.submit(
            make_request(
                request_id,
                ask.prompt,
                key=CacheKey(),
                sampling=ask.sampling,
                max_new_tokens=ask.max_new_tokens,
                stop=StopConditions(stop_ids=ask.stop_ids),
                now=clock(),
            )
        )
    while loop.has_work:
        for event in loop.step():
            if isinstance(event, TokensEvent):
                heard[event.request_id].samples += event.samples
            elif isinstance(event, FinishedEvent):
                heard[event.request_id].reason = event.reason
    check_identity(cache)
    check_all_free(cache)
    statistics = scheduler.statistics()
    assert drafter is None or statistics.drafted > 0, "nobody guessed"
    assert not isinstance(drafter, Replay) or 0 < statistics.accepted < statistics.drafted
    assert statistics.retractions > 0 or not shape.retract_every
    loop.shut_down()
    backend.close()
    return list(heard.values())


def asks_of(name: str) -> list[Ask]:
    """Prompts that share a beginning and repeat themselves; two end at a token that they would say."""
    rng = random.Random(name)
    opening = tuple(rng.randrange(VOCAB) for _ in range(30))
    asks = [
        Ask(opening + tuple(rng.randrange(VOCAB) for _ in range(9)) * 3 + (number,), sampling, 24 + 3 * number)
        for number, sampling in enumerate(SAMPLINGS)
    ]
    model = MODELS[name]
    for number in (0, 1):
        (alone,) = run(model, asks[number : number + 1], Shape(seqs_max=1, chunk=CONTEXT), None)
        asks[number] = replace(asks[number], stop_ids=frozenset({alone.samples[15].token}))
    return asks


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[Ask], list[Heard]]]:
    """What each request says on a fresh engine that runs nothing else."""
    found = {}
    for name, model in MODELS.items():
        asks = asks_of(name)
        found[name] = asks, [run(model, [ask], Shape(seqs_max=1, chunk=CONTEXT), None)[0] for ask in asks]
    return found


CASES = [
    (name, drafter, Shape(size, chunk, retract_every=every, depth=depth, share=share))
    for name, drafter, size, (chunk, every, share), depth in itertools.product(
        MODELS, ("none", "ngram", "replay"), (1, 16), ((64, 0, 1.0), (7, 3, 1.0), (16, 0, 0.4)), (0, 1)
    )
]


@pytest.mark.parametrize(("name", "drafts", "shape"), CASES)
def test_nothing_shows(alone: dict[str, tuple[list[Ask], list[Heard]]], name: str, drafts: str, shape: Shape) -> None:
    asks, expected = alone[name]
    lines = [ask.prompt + tuple(s.token for s in one.samples) for ask, one in zip(asks, expected, strict=True)]
    drafter = {"none": None, "ngram": NgramDrafter(), "replay": Replay(lines, shape.page_size)}[drafts]
    assert run(MODELS[name], asks, shape, drafter) == expected


def test_the_cases_stop_where_they_can(alone: dict[str, tuple[list[Ask], list[Heard]]]) -> None:
    for _, heard in alone.values():
        assert {one.reason for one in heard} == {FinishReason.STOP, FinishReason.LENGTH}
        assert all(sample.logprob is not None for one in heard for sample in one.samples)
