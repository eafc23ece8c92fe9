"""Everything from scheduler to ledger over the fake back end, small enough that pages run short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sojourn.audit.census import census
from sojourn.cache.none import NoneCache
from sojourn.cache.protocol import CacheKey, InnerCache, PrefixCache
from sojourn.cache.radix import RadixCache
from sojourn.core.ids import RequestId, StepId
from sojourn.core.step import SamplingParams
from sojourn.engine.events import Event, FinishedEvent, FinishReason, TokensEvent
from sojourn.engine.loop import EngineLoop
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import NUM_RESERVED, PoolLayout
from sojourn.runner.runner import Runner
from sojourn.scheduler.request import Request, StopConditions, StopMatcher, make_request
from sojourn.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.support.fake_backend import FakeBackend


class ManualClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class WorldConfig:
    """`num_pages` counts the usable pages of each pool; a window of 0 means one pool."""

    cache: str = "radix"
    page_size: int = 16
    num_pages: int = 64
    window: int = 0
    context: int = 512
    seqs_max: int = 4
    step_tokens_max: int = 64
    chunk_tokens_max: int = 16
    retract_every: int = 0


class CountingCheck:
    """The census after every step: every page has one owner and every owner its pages."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self.checks = 0

    def after_step(self, step: StepId, *, is_idle: bool) -> None:
        self.checks += 1
        check_identity(self._cache)


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


def inner_cache(config: WorldConfig) -> InnerCache:
    layout = PoolLayout(config.page_size, config.window)
    book = HoldingBook(layout, [config.num_pages + NUM_RESERVED] * layout.num_pools)
    return RadixCache(book) if config.cache == "radix" else NoneCache(book)


@dataclass
class Record:
    """What one request was told."""

    tokens: list[int] = field(default_factory=list)
    end: FinishedEvent | None = None

    def take(self, event: Event) -> None:
        assert self.end is None, "an event after the last one"
        if isinstance(event, TokensEvent):
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
        self, config: WorldConfig, decorate: Callable[[InnerCache], PrefixCache] | None = None, depth: int = 0
    ) -> None:
        self.config = config
        self.clock = ManualClock()
        inner = inner_cache(config)
        self.cache: PrefixCache = inner if decorate is None else decorate(inner)
        num_pools = 2 if config.window else 1
        self.backend = FakeBackend(
            page_size=config.page_size,
            totals=[config.num_pages + NUM_RESERVED] * num_pools,
            window=config.window,
            seqs_max=config.seqs_max,
            context=config.context,
        )
        scheduler_config = SchedulerConfig(
            context_length=config.context,
            seqs_max=config.seqs_max,
            step_tokens_max=config.step_tokens_max,
            chunk_tokens_max=config.chunk_tokens_max,
            retract_every=config.retract_every,
        )
        self.scheduler = Scheduler(self.cache, scheduler_config, self.clock)
        self.check = CountingCheck(self.cache)
        self.loop = EngineLoop(
            self.scheduler, Runner(self.backend), self.cache, self.clock, mem_check=self.check, depth=depth
        )
        self.records: dict[RequestId, Record] = {}
        self._count = 0

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int = 8,
        *,
        sampling: SamplingParams | None = None,
        stop_ids: frozenset[int] = frozenset(),
        matcher: StopMatcher | None = None,
        namespace: str = "",
    ) -> RequestId:
        request = self.request(
            prompt, max_new_tokens, sampling=sampling, stop_ids=stop_ids, matcher=matcher, namespace=namespace
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
