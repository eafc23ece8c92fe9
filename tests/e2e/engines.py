"""Engines over a real model on the native core: the one under test, and a fresh one that runs one request alone."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sojourn.app.draft_side import DraftSide
from sojourn.audit.policy import MemCheck, StrictMemCheck
from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import KvDtype
from sojourn.cache.none import NoneCache
from sojourn.cache.radix import RadixCache
from sojourn.cache.tiers import Tier
from sojourn.cache.tiers_store import StoreTier
from sojourn.core.ids import RequestId
from sojourn.core.step import Sample
from sojourn.core.tier import PageStore
from sojourn.engine.events import Event, FinishedEvent, FinishReason, Notice, TokensEvent
from sojourn.engine.loop import EngineLoop
from sojourn.models.identity import kv_identity
from sojourn.models.store import LoadedModel
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import NUM_RESERVED, PoolLayout
from sojourn.runner.runner import Runner
from sojourn.scheduler.scheduler import Scheduler, SchedulerConfig
from sojourn.sessions.service import ServiceConfig, SessionService, TurnParams
from sojourn.sessions.slots import SessionAwareCache
from sojourn.spec.protocol import Drafter
from tests.support.fixed_drafts import FixedDrafts
from tests.support.world import ManualClock, Record


@dataclass(frozen=True)
class Shape:
    """What an engine is built with. Lengths in tokens; `pages` are usable ones, per pool."""

    page_size: int
    pages: tuple[int, int]
    context: int
    chunk: int
    step_tokens: int
    seqs_max: int
    cache: str
    kv_dtype: KvDtype = "f16"
    threads: int = 1
    retract_every: int = 0
    depth: int = 0
    drafts_max: int = 0


@dataclass
class Heard(Record):
    """A request's events, with the samples themselves: log-probabilities tell a wrong bit where a token would not."""

    samples: list[Sample] = field(default_factory=list)

    def take(self, event: Event) -> None:
        super().take(event)
        if isinstance(event, TokensEvent):
            self.samples += event.samples


class RealEngine:
    """Everything from sessions to the native core, with the census after every step."""

    def __init__(
        self,
        model: LoadedModel,
        shape: Shape,
        drafter: Drafter | None = None,
        draft: DraftSide | None = None,
        pages: PageStore | None = None,
    ) -> None:
        """Nobody guesses, or a drafter without KV, or a second model. `pages`: a store below the tree."""
        config, clock = model.packed.config, ManualClock()
        self.layout = PoolLayout(shape.page_size, config.attention.sliding_window)
        totals = [pages + NUM_RESERVED for pages in shape.pages]
        book = HoldingBook(self.layout, totals[: self.layout.num_pools])
        self._draft = draft
        self._backend = NativeBackend(
            model.packed,
            page_size=shape.page_size,
            num_pages=(totals[0], totals[1]),
            kv_dtype=shape.kv_dtype,
            threads=shape.threads,
            seqs_max=shape.seqs_max,
        )
        self._pages = pages
        tier: Tier | None = None
        if pages is not None:
            tier = StoreTier(pages, self._backend, kv_identity(model.packed), self.layout, clock, lambda: None)
        inner = RadixCache(book, tier) if shape.cache == "radix" else NoneCache(book)
        self.cache = SessionAwareCache(inner, drafts=None if draft is None else draft.pool())
        scheduler_config = SchedulerConfig(
            shape.context, shape.seqs_max, shape.step_tokens, shape.chunk, shape.retract_every
        )
        policy = FixedDrafts(shape.drafts_max) if shape.drafts_max else None
        self.scheduler = Scheduler(self.cache, scheduler_config, clock, policy)
        check = MemCheck(self.cache, StrictMemCheck.EVERY_STEP, clock)
        executor = ThreadPoolExecutor(1) if shape.depth else None
        guesser = drafter if draft is None else draft.drafter()
        runner = Runner(self._backend, clock, drafter=guesser, executor=executor)
        self.loop = EngineLoop(
            self.scheduler,
            runner,
            self.cache,
            clock,
            mem_check=check,
            depth=shape.depth,
            await_pages=self._await_pages,
        )
        service_config = ServiceConfig(config.vocab_size, shape.context, frozenset(model.text.eos_ids))
        self.service = SessionService(self.loop, self.cache, service_config, clock=clock, new_id=self._new_id)
        self._ids = 0
        self._heard: dict[RequestId, Heard] = {}

    def _new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def _await_pages(self) -> None:
        assert self._pages is not None, "waits for pages, and nobody reads any"
        self._pages.wait(0.1)

    def listen(self, request_id: RequestId) -> Heard:
        """What is told of a request from now on."""
        return self._heard.setdefault(request_id, Heard())

    def step(self) -> None:
        for event in self.service.step():
            self._take(event)

    def run(self, steps_max: int = 5000) -> None:
        for _ in range(steps_max):
            if not self.service.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {steps_max} steps: {self.scheduler.statistics()}")

    def close(self) -> None:
        self.loop.shut_down()
        self._backend.close()
        if self._draft is not None:
            self._draft.backend.close()

    def _take(self, event: Event | Notice) -> None:
        if isinstance(event, TokensEvent | FinishedEvent):
            self.listen(event.request_id).take(event)


def run_alone(
    model: LoadedModel, shape: Shape, prompt: Sequence[int], params: TurnParams
) -> tuple[list[Sample], FinishReason]:
    """The stateless run: a fresh engine without a cache, the prompt in one chunk, nobody else in the batch."""
    length = len(prompt) + (params.max_new_tokens or 1)
    pages = -(-length // 16)
    alone = Shape(16, (pages, pages), shape.context, length, length, 1, "none", shape.kv_dtype)
    engine = RealEngine(model, alone)
    heard = engine.listen(engine.service.submit(prompt, params))
    engine.run()
    engine.close()
    return heard.samples, heard.reason
