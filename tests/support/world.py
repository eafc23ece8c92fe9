"""Everything from scheduler to ledger over the fake back end, small enough that pages run short."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypedDict

from sojourn.audit.census import census
from sojourn.audit.writes import WriteCheck
from sojourn.cache.none import NoneCache
from sojourn.cache.protocol import CacheKey, InnerCache, PrefixCache
from sojourn.cache.radix import RadixCache
from sojourn.cache.tiers import Tier
from sojourn.cache.tiers_store import StoreTier
from sojourn.core.ids import NULL_PAGE, AccountId, RequestId, StepId
from sojourn.core.step import PageArray, Sample, SamplingParams
from sojourn.core.tier import PageStore
from sojourn.engine.events import Event, FinishedEvent, FinishReason, TokensEvent
from sojourn.engine.loop import EngineLoop
from sojourn.pages.accounts import FENCED
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import NUM_RESERVED, PoolLayout
from sojourn.runner.runner import Runner
from sojourn.scheduler.drafting import DraftPolicy
from sojourn.scheduler.flight import Launched
from sojourn.scheduler.request import Request, StopConditions, StopMatcher, make_request
from sojourn.scheduler.scheduler import Scheduler, SchedulerConfig
from sojourn.spec.protocol import Drafter
from tests.support.draft_models import WatchedDraftModel
from tests.support.drafters import ScriptedDrafter
from tests.support.executors import Early, Late
from tests.support.fake_backend import FakeBackend
from tests.support.fake_store import FakeStore
from tests.support.fixed_drafts import FixedDrafts


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Sizes(TypedDict, total=False):
    """Those of a world that a test may choose besides its kind."""

    context: int
    seqs_max: int
    step_tokens_max: int
    chunk_tokens_max: int
    retract_every: int


@dataclass(frozen=True)
class WorldConfig:
    """`num_pages` counts the usable pages of each pool, unless the window pool has its own; a window of 0: one pool."""

    cache: str = "radix"
    page_size: int = 16
    num_pages: int = 64
    window: int = 0
    context: int = 512
    seqs_max: int = 4
    step_tokens_max: int = 64
    chunk_tokens_max: int = 16
    retract_every: int = 0
    swa_pages: int = 0  # 0: as many as the full pool
    drafts_max: int = 0  # 0: nobody is asked to guess
    drafts_right: float = 0.7  # how often the scripted drafter is
    drafts_adapt: bool = False  # as many as seem worth it, not always as many as there is room for
    tier_seed: int | None = None  # of a store of pages below the tree, with its misfortunes; None: no tier
    tier_ahead: bool = False  # what idle conversations keep is copied there
    draft_pages: int = 0  # usable ones of a draft model, which then guesses instead of the scripted drafter; 0: none
    runs_early: bool = False  # with steps in flight: each runs when it is launched, not when it is waited for

    @property
    def totals(self) -> list[int]:
        """Pages of each pool, the null page included."""
        full = self.num_pages + NUM_RESERVED
        return [full, (self.swa_pages or self.num_pages) + NUM_RESERVED] if self.window else [full]


class CountingCheck:
    """The census after every step, one writer for every page, and what steps in flight may touch is nobody else's yet."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._tree = cache.audit().account or FENCED
        self._writes = WriteCheck(cache.book, cache.draft_book)
        self._touched: deque[tuple[StepId, AccountId, list[PageArray]]] = deque()
        self._drafts_touched: deque[tuple[StepId, AccountId, list[PageArray]]] = deque()
        self.checks = 0
        self.idle_looks = 0
        self.mixed = 0  # steps with a decode and a chunk of a prompt
        self.ahead = 0  # works that begin with a token which nobody knew when they were planned
        self.drafts_ahead = 0  # of those, with places for drafts
        self.slides = 0  # works whose window pool had let go

    def before_step(self, step: StepId, works: Sequence[Launched]) -> None:
        self._writes.launch(step, works)
        self.mixed += {work.end - work.start > 1 and not work.is_open for work in works} == {False, True}
        for work in works:
            holding = work.request.cached.holding
            assert holding is not None
            is_ahead = work.is_open and work.start >= work.request.cached.num_tokens
            self.ahead += is_ahead
            self.drafts_ahead += is_ahead and work.drafts_max > 0
            self.slides += any(pages.live_from or pages.swept for pages in holding.lists[1:])
            touched = [pages.pages[pages.pages != NULL_PAGE] for pages in holding.lists]
            self._touched.append((step, holding.account, touched))
            draft = work.request.cached.draft
            if draft is not None:
                self._drafts_touched.append((step, draft.account, [draft.lists[0].pages.copy()]))

    def after_step(self, step: StepId, *, is_idle: bool) -> None:
        self.checks += 1
        self._writes.retire(step)
        for touched in (self._touched, self._drafts_touched):
            while touched and touched[0][0] <= step:
                touched.popleft()
        self.check()

    def when_idle(self) -> None:
        assert not self._touched, "idle with a step in flight"
        self.idle_looks += 1
        self.check()

    def check(self) -> None:
        check_identity(self._cache)
        self._check_touched(self._cache.book, self._touched)
        if self._cache.draft_book is not None:
            self._check_touched(self._cache.draft_book, self._drafts_touched)

    def _check_touched(self, book: HoldingBook, flights: Iterable[tuple[StepId, AccountId, list[PageArray]]]) -> None:
        for step, account, touched in flights:
            for ledger, pages in zip(book.ledgers, touched, strict=True):
                owners = ledger.owners[pages]
                allowed = (owners == account) | (owners == FENCED)
                if book is self._cache.book:
                    allowed |= owners == self._tree
                assert allowed.all(), f"step {step} may touch pages that others have now"


def check_identity(cache: PrefixCache) -> None:
    census(cache)
    for pool in cache.statistics():
        parts = pool.free + pool.fenced + pool.reserved + pool.tree + pool.running + pool.idle
        assert parts == pool.total, pool


def check_all_free(cache: PrefixCache) -> None:
    """With nothing running and everything flushed, nothing but the null pages is missing."""
    cache.flush()
    for pool in cache.statistics():
        assert pool.free + pool.reserved == pool.total, pool


def inner_cache(config: WorldConfig, tier: Tier | None) -> InnerCache:
    book = HoldingBook(PoolLayout(config.page_size, config.window), config.totals)
    return RadixCache(book, tier) if config.cache == "radix" else NoneCache(book)


def watched(config: WorldConfig) -> WatchedDraftModel:
    """As large as its pool, right as often as the scripted drafter."""
    model = WatchedDraftModel(
        page_size=config.page_size,
        total=config.draft_pages + NUM_RESERVED,
        window=config.window,
        seqs_max=config.seqs_max,
        context=config.context,
    )
    model.inner.seed, model.inner.right = str(config), config.drafts_right
    return model


@dataclass
class Record:
    """What one request was told."""

    tokens: list[int] = field(default_factory=list)
    end: FinishedEvent | None = None
    known: list[Sample] = field(default_factory=list)

    def take(self, event: Event) -> None:
        assert self.end is None, "an event after the last one"
        if isinstance(event, TokensEvent):
            assert not (event.known and self.tokens), "the prompt is told after the output"
            self.known += event.known
            self.tokens += [sample.token for sample in event.samples]
        else:
            self.end = event
            assert event.output_ids == tuple(self.tokens), "tokens sent and reported differ"

    @property
    def reason(self) -> FinishReason:
        assert self.end is not None, "it has not ended"
        return self.end.reason


class World:
    """An engine loop over `cache`, and what it told about each request."""

    def __init__(
        self,
        config: WorldConfig,
        decorate: Callable[[InnerCache], PrefixCache] | None = None,
        depth: int = 0,
        drafter: Drafter | None = None,
        executor: Executor | None = None,
        store: PageStore | None = None,
    ) -> None:
        self.config = config
        self.clock = ManualClock()
        self.seconds_per_token: float | None = None  # as far as the tier knows
        self.backend = FakeBackend(
            page_size=config.page_size,
            totals=config.totals,
            window=config.window,
            seqs_max=config.seqs_max,
            context=config.context,
        )
        self.store = store or (None if config.tier_seed is None else FakeStore.drawn(config.tier_seed))
        inner = inner_cache(config, self._tier())
        self.radix = inner if isinstance(inner, RadixCache) else None
        self.cache: PrefixCache = inner if decorate is None else decorate(inner)
        scheduler_config = SchedulerConfig(
            context_length=config.context,
            seqs_max=config.seqs_max,
            step_tokens_max=config.step_tokens_max,
            chunk_tokens_max=config.chunk_tokens_max,
            retract_every=config.retract_every,
        )
        policy: DraftPolicy | None = None
        self.draft_model: WatchedDraftModel | None = None
        if config.drafts_max:
            policy = (DraftPolicy if config.drafts_adapt else FixedDrafts)(config.drafts_max)
            self.draft_model = watched(config) if config.draft_pages else None
            drafter = drafter or self.draft_model or ScriptedDrafter(str(config), config.drafts_right)
        self.scheduler = Scheduler(self.cache, scheduler_config, self.clock, policy)
        self.check = CountingCheck(self.cache)
        if executor is None and depth > 0:
            executor = Early() if config.runs_early else Late()
        self.runner = Runner(self.backend, self.clock, drafter=drafter, executor=executor)
        self.loop = EngineLoop(
            self.scheduler,
            self.runner,
            self.cache,
            self.clock,
            mem_check=self.check,
            depth=depth,
            await_pages=self._await_pages,
        )
        self.records: dict[RequestId, Record] = {}
        self._count = 0

    def _tier(self) -> Tier | None:
        if self.store is None:
            return None
        layout = PoolLayout(self.config.page_size, self.config.window)
        ahead, clock = self.config.tier_ahead, self.clock
        return StoreTier(
            self.store, self.backend, b"fake", layout, clock, lambda: self.seconds_per_token, writes_ahead=ahead
        )

    def _await_pages(self) -> None:
        assert self.store is not None, "waits for pages, and nobody reads any"
        self.store.wait(0)
        self.clock.now += 0.01

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int = 8,
        *,
        sampling: SamplingParams | None = None,
        stop_ids: frozenset[int] = frozenset(),
        matcher: StopMatcher | None = None,
        namespace: str = "",
        logprobs_from: int | None = None,
    ) -> RequestId:
        request = self.request(
            prompt,
            max_new_tokens,
            sampling=sampling,
            stop_ids=stop_ids,
            matcher=matcher,
            namespace=namespace,
            logprobs_from=logprobs_from,
        )
        self.loop.submit(request)
        self.records[request.request_id] = Record()
        return request.request_id

    def request(
        self,
        prompt: Sequence[int],
        max_new_tokens: int = 8,
        *,
        sampling: SamplingParams | None = None,
        stop_ids: frozenset[int] = frozenset(),
        matcher: StopMatcher | None = None,
        namespace: str = "",
        logprobs_from: int | None = None,
    ) -> Request:
        self._count += 1
        return make_request(
            RequestId(f"r{self._count}"),
            list(prompt),
            key=CacheKey(namespace),
            sampling=sampling or SamplingParams(),
            max_new_tokens=max_new_tokens,
            stop=StopConditions(stop_ids=stop_ids, matcher=matcher),
            now=self.clock(),
            logprobs_from=logprobs_from,
        )

    def step(self) -> None:
        for event in self.loop.step():
            self.records[event.request_id].take(event)

    def run(self, steps_max: int = 5000) -> None:
        """Until nothing is left to do."""
        for _ in range(steps_max):
            if not self.loop.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {steps_max} steps: {self.scheduler.statistics()}")

    def abort(self, request_id: RequestId) -> None:
        self.records[request_id].take(self.loop.abort(request_id))

    def interrupt(self, request_id: RequestId) -> None:
        self.records[request_id].take(self.loop.interrupt(request_id))

    def close(self) -> None:
        """Nothing is left running, and every page can be had again."""
        assert not self.loop.has_work
        check_identity(self.cache)
        check_all_free(self.cache)
