"""One turn of the crank: plan, launch, settle. Composes scheduler, cache and runner; decides nothing.

        depth 0   plan n ─ launch n ─ wait n ─ settle n
        depth 1   plan n ─ launch n ─ wait n-1 ─ settle n-1 ─ plan n+1 ─ launch n+1 ─ wait n ...
                            └──── n runs ──────────────────────────────────────────────┘

At depth 1 steps run on the runner's thread, and this one settles and plans beside them. The cache is told of each launch
before it runs and of each retirement after, so that pages given up in between are fenced. Called on one thread;
knows no clients.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sojourn.audit.report import report
from sojourn.audit.watchdog import Watchdog
from sojourn.cache.protocol import PrefixCache
from sojourn.core.clock import Clock
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import RequestId, StepId
from sojourn.core.record import record
from sojourn.core.step import StepPlan
from sojourn.engine.events import Event, FinishedEvent, FinishReason, TokensEvent, Usage
from sojourn.engine.meter import StepMeter, StepStatistics
from sojourn.runner.runner import Runner, StepHandle
from sojourn.scheduler.flight import Launched
from sojourn.scheduler.request import Request
from sojourn.scheduler.scheduler import Progress, Scheduler
from sojourn.scheduler.stop import Stop

_REQUESTS_SHOWN = 32  # in a report


class MemCheck(Protocol):
    """Looks when its policy says so; raises CorruptionError with a report on a broken law."""

    def before_step(self, step: StepId, works: Sequence[Launched]) -> None: ...

    def after_step(self, step: StepId, *, is_idle: bool) -> None: ...

    def when_idle(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    steps: int
    in_flight: int
    by_phase: tuple[StepStatistics, ...] = ()


@record(eq=False)
class _Flight:
    step: StepId
    handle: StepHandle
    plan: StepPlan
    began_at: float


class EngineLoop:
    """Turns requests into events. `depth` steps may be in flight while the next is planned."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        cache: PrefixCache,
        clock: Clock,
        *,
        mem_check: MemCheck | None = None,
        depth: int = 0,
        await_pages: Callable[[], None] | None = None,
    ) -> None:
        self._await_pages = await_pages  # for a moment, or until a slower tier has read some
        self._scheduler = scheduler
        self._runner = runner
        self._cache = cache
        self._clock = clock
        self._mem_check = mem_check
        self._depth = depth
        self._flights: deque[_Flight] = deque()
        self._ahead_in: float | None = None  # seconds until more may be written ahead
        self._next_step = 1
        self._settled_at = 0.0  # the last step was, by the clock
        self._meter = StepMeter()
        self._watchdog = Watchdog(cache)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def scheduler(self) -> Scheduler:
        """To look at: its statistics, and what a request would be refused for."""
        return self._scheduler

    def wake_in(self) -> float | None:
        """Seconds until something is due without being asked: what idle conversations keep is to be written."""
        return self._ahead_in

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            steps=self._next_step - 1, in_flight=len(self._flights), by_phase=self._meter.statistics()
        )

    def report(self, error: CorruptionError) -> str:
        """What there is to say about a broken law: the cache's picture, and who was alive."""
        alive = [f"  {request}" for request in self._scheduler.alive()][:_REQUESTS_SHOWN]
        return "\n".join([report(error, self._cache, StepId(self._next_step - 1)), "requests:", *alive])

    def submit(self, request: Request) -> None:
        """Queue it, or raise a ClientError and change nothing."""
        self._scheduler.submit(request)

    def abort(self, request_id: RequestId, message: str = "") -> FinishedEvent:
        """Undo it now, wherever it is. The event is the caller's to pass on; no step gives another."""
        return self._finished(self._scheduler.end(request_id, FinishReason.ABORT), message)

    def interrupt(self, request_id: RequestId) -> FinishedEvent:
        """Finish it now: what was generated stands. Before the first token it is an abort."""
        return self._finished(self._scheduler.end(request_id, FinishReason.INTERRUPT))

    def step(self) -> list[Event]:
        """Plan and launch the next step, and settle the oldest in flight when there are more than `depth`."""
        events = self._step()
        self._ahead_in = self._cache.write_ahead(is_busy=self.has_work)
        return events

    def _step(self) -> list[Event]:
        step, began_at = StepId(self._next_step), self._clock()
        plan = self._scheduler.plan(step)
        self._watchdog.waits(step, self._scheduler.blocked())
        if plan.work:
            self._next_step += 1
            if self._mem_check is not None:
                self._mem_check.before_step(step, self._scheduler.planned())
            self._cache.launch(step)
            self._flights.append(_Flight(step, self._runner.launch(plan), plan, began_at))
        if not self._flights:
            if self._mem_check is not None and not self._scheduler.has_work:
                self._mem_check.when_idle()
            if self._scheduler.is_fetching and self._await_pages is not None:
                self._watchdog.goes_on()  # the tier has patience of its own
                self._await_pages()
                return []
            self._watchdog.nothing_ran(step, began_at, self._scheduler.alive())
            return []
        if plan.work and len(self._flights) <= self._depth:
            return []
        flight = self._flights.popleft()
        result = flight.handle.wait()
        ended_at = self._clock()
        self._meter.count(flight.plan, result.num_rows, ended_at - max(flight.began_at, self._settled_at))
        self._settled_at = ended_at
        self._cache.retire(flight.step)
        progress = self._scheduler.settle(result)
        if self._mem_check is not None:
            self._mem_check.after_step(flight.step, is_idle=not self._scheduler.has_work)
        return self._events(progress)

    def shut_down(self) -> None:
        """No step follows. Waits for those in flight, whose results nobody wants but their faults."""
        try:
            while self._flights:
                self._flights.popleft().handle.wait()
        finally:
            self._runner.close()

    def _events(self, progress: list[Progress]) -> list[Event]:
        events: list[Event] = []
        for item in progress:
            if item.samples or item.known:
                request = item.request
                events.append(TokensEvent(request.cached.request_id, item.samples, request.cached_tokens, item.known))
            if item.stop is not None:
                events.append(self._finished(item))
        return events

    def _finished(self, item: Progress, message: str = "") -> FinishedEvent:
        request, stop = item.request, item.stop or Stop(FinishReason.ABORT)
        return FinishedEvent(
            request_id=request.request_id,
            reason=stop.reason,
            output_ids=request.output_ids,
            usage=self._usage(request),
            stop_match=stop.match,
            message=message,
        )

    def _usage(self, request: Request) -> Usage:
        """`completion_tokens` counts what was generated, also of a request that was undone."""
        return Usage(
            prompt_tokens=request.cached.num_prompt,
            cached_tokens=request.cached_tokens,
            cached_source=request.cached_source,
            cache_miss=request.cache_miss,
            completion_tokens=request.num_outputs,
            queued_at=request.times.queued_at,
            admitted_at=request.times.admitted_at,
            first_token_at=request.times.first_token_at,
            finished_at=self._clock(),
            num_retractions=request.num_retractions,
            num_drafted=0 if request.acceptance is None else request.acceptance.num_drafted,
            num_accepted=0 if request.acceptance is None else request.acceptance.num_accepted,
            read_tokens=request.read_tokens,
        )
