"""What Prometheus sees: counters and histograms of requests, fed where they end, and gauges read from the last heartbeat.

Names and buckets are fixed; labels are few and never name a session, a request or a tenant.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sojourn.api import disk_tier, wire
from sojourn.api.engine_link import EngineLink
from sojourn.api.errors import Fault
from sojourn.api.metrics_compat import CompatCollector
from sojourn.api.settings import MetricsCompat
from sojourn.engine.meter import Histogram as Buckets
from sojourn.sessions.recorder import KeptStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DURATION = tuple(0.01 * 2**k for k in range(14))  # to 81.92
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
TOKENS = tuple(4**k for k in range(14))


class Metrics:
    """One registry, one front."""

    def __init__(
        self,
        link: EngineLink,
        is_ready: Callable[[], bool],
        version: str,
        compat: MetricsCompat | None = None,
        *,
        num_in_lanes: Callable[[], int] = lambda: 0,  # turns that wait for their session
    ) -> None:
        self._registry = CollectorRegistry()
        self._others = CollectorRegistry()  # our numbers by others' names

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sojourn_{name}", text, labels, registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"sojourn_{name}", text, labels, buckets=buckets, registry=self._registry)

        self._requests = counter("requests", "Answered HTTP requests.", "route", "status")
        self._aborted = counter("requests_aborted", "Requests that ended undone.", "reason")
        self._rejected = counter("requests_rejected", "Requests refused at the door.", "reason")
        self._opened = counter("sessions_opened", "Sessions opened.")
        self._closed = counter("sessions_closed", "Sessions closed.", "reason")
        self._prompt = counter("prompt_tokens", "Prompt tokens, history and cached ones included.")
        self._cached = counter("cached_tokens", "Prompt tokens whose KV was reused.", "source")
        self._queried = counter("prefix_cache_queried_tokens", "Prompt tokens looked up in the tree of prefixes.")
        self._hit = counter("prefix_cache_hit_tokens", "Those of them that were found.")
        self._completion = counter("completion_tokens", "Generated tokens.")
        self._missed = counter("cache_miss", "Turns that found less than their history.", "reason")
        self._first_token = histogram("time_to_first_token_seconds", "From queue to token.", FIRST_TOKEN, "mode")
        self._per_token = histogram("time_per_output_token_seconds", "After the first token.", PER_TOKEN, "mode")
        self._duration = histogram("request_duration_seconds", "From queue to end.", DURATION, "mode")
        self._queue = histogram("queue_duration_seconds", "From queue to batch.", DURATION, "mode")
        self._append = histogram("turn_append_tokens", "Tokens that a turn computed anew.", TOKENS, "mode")
        self._registry.register(_EngineCollector(link, is_ready, version, num_in_lanes))
        if compat is not None:
            self._others.register(CompatCollector(self._registry, compat))

    def expose(self) -> bytes:
        return generate_latest(self._registry) + generate_latest(self._others)

    def answered(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def rejected(self, fault: Fault) -> None:
        self._rejected.labels(_rejection(fault)).inc()

    def aborted(self, reason: str) -> None:
        self._aborted.labels(reason).inc()

    def session_opened(self) -> None:
        self._opened.inc()

    def session_closed(self, reason: str) -> None:
        self._closed.labels(reason).inc()

    def ended(self, end: wire.Ended, *, is_session: bool) -> None:
        """A request has come to its end in the engine."""
        usage, mode = end.usage, "session" if is_session else "stateless"
        self._duration.labels(mode).observe(usage.finished_at - usage.queued_at)
        if usage.admitted_at is None:
            return
        self._prompt.inc(usage.prompt_tokens)
        self._completion.inc(usage.completion_tokens)
        in_pool = "prefix" if usage.read_tokens else usage.cached_source
        self._cached.labels(in_pool).inc(usage.cached_tokens - usage.read_tokens)
        if usage.read_tokens:
            self._cached.labels(usage.cached_source).inc(usage.read_tokens)
        if usage.cached_source != "session":  # a session that goes on where it was asks for nothing
            self._queried.inc(usage.prompt_tokens)
            self._hit.inc(usage.cached_tokens)
        self._queue.labels(mode).observe(usage.admitted_at - usage.queued_at)
        self._append.labels(mode).observe(usage.prompt_tokens - usage.cached_tokens)
        if end.miss is not None:
            self._missed.labels(end.miss).inc()
        if usage.first_token_at is None:
            return
        self._first_token.labels(mode).observe(usage.first_token_at - usage.queued_at)
        if usage.completion_tokens > 1:
            pace = (usage.finished_at - usage.first_token_at) / (usage.completion_tokens - 1)
            self._per_token.labels(mode).observe(pace)


def _rejection(fault: Fault) -> str:
    if fault.status == 429:
        return "quota"
    if fault.status == 503:
        return "overload"
    return "context" if fault.code in ("context_length_exceeded", "capacity_exceeded") else "invalid"


class _EngineCollector:
    """The engine as its last heartbeat told; nothing of it while it is down."""

    def __init__(
        self, link: EngineLink, is_ready: Callable[[], bool], version: str, num_in_lanes: Callable[[], int]
    ) -> None:
        self._num_in_lanes = num_in_lanes
        self._link = link
        self._is_ready = is_ready
        self._version = version

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("sojourn_ready", "1 while new work is taken.", value=float(self._is_ready()))
        build = GaugeMetricFamily("sojourn_build_info", "Always 1.", labels=["version", "model"])
        card = None if self._link.welcome is None else self._link.welcome.card
        build.add_metric([self._version, "" if card is None else card.name], 1)
        yield build
        yield CounterMetricFamily(
            "sojourn_engine_starts", "Engines seen by this front; above 1: one has died.", value=self._link.num_engines
        )
        beat = self._link.heartbeat
        if beat is None or card is None:
            return
        yield from _pages(beat, card)
        yield from _work(beat, self._num_in_lanes())
        yield from _steps(beat)
        if card.guesser != "off":
            yield from _guesses(beat, card)
        if beat.disk is not None:
            yield from disk_tier.families(beat.disk, beat.sessions_to_copy)
        if beat.kept is not None:
            yield from _kept(beat.kept)


def _pages(beat: wire.Heartbeat, card: wire.ModelCard) -> Iterator[Metric]:
    pages = GaugeMetricFamily("sojourn_kv_pages", "Pages by owner.", labels=["state", "pool", "tier"])
    capacity = GaugeMetricFamily("sojourn_kv_pages_capacity", "Pages of a pool.", labels=["pool", "tier"])
    leaked = GaugeMetricFamily("sojourn_kv_pages_leaked", "Pages without an owner.", labels=["pool"])
    pinned = GaugeMetricFamily(
        "sojourn_kv_pinned_pages", "Pages of the tree and of idle sessions that nobody can have now.", labels=["pool"]
    )
    evicted = CounterMetricFamily(
        "sojourn_kv_evicted_pages", "Pages that the tree gave up.", labels=["pool", "tier", "cause"]
    )
    for pool in beat.pools:
        states = {
            "free": pool.free,
            "fenced": pool.fenced,
            "reserved": pool.reserved,
            "tree": pool.tree,
            "running": pool.running,
            "session_idle": pool.idle,
        }
        for state, count in states.items():
            pages.add_metric([state, pool.pool, "device"], count)
        capacity.add_metric([pool.pool, "device"], pool.total)
        leaked.add_metric([pool.pool], pool.total - sum(states.values()))
        pinned.add_metric([pool.pool], pool.tree + pool.idle - pool.evictable)
        evicted.add_metric([pool.pool, "device", "pressure"], pool.evicted)
        evicted.add_metric([pool.pool, "device", "flush"], pool.flushed)
    if beat.disk is not None:
        store = beat.disk.store
        for name, kept, gone in zip(card.pool_names, store.num_pages, store.evicted, strict=False):
            pages.add_metric(["tree", name, disk_tier.TIER], kept)
            evicted.add_metric([name, disk_tier.TIER, "capacity"], gone)
    yield from (pages, capacity, leaked, pinned, evicted)
    sizes = GaugeMetricFamily("sojourn_kv_bytes", "Bytes of a pool.", labels=["pool", "tier"])
    for name, size in zip(card.pool_names, card.kv_bytes, strict=True):
        sizes.add_metric([name, "device"], size)
    yield sizes
    yield GaugeMetricFamily("sojourn_kv_page_size_tokens", "Tokens of a page.", value=card.page_size)


def _work(beat: wire.Heartbeat, num_in_lanes: int) -> Iterator[Metric]:
    sessions = GaugeMetricFamily("sojourn_sessions", "Open sessions.", labels=["state"])
    sessions.add_metric(["active"], beat.sessions_active - beat.sessions_closing)
    sessions.add_metric(["closing"], beat.sessions_closing)
    sessions.add_metric(["idle"], beat.sessions_idle)
    sessions.add_metric(["demoted"], max(0, beat.sessions - beat.sessions_active - beat.sessions_idle))
    yield sessions
    yield GaugeMetricFamily("sojourn_requests_running", "Requests that hold pages.", value=beat.running)
    waiting = GaugeMetricFamily("sojourn_requests_waiting", "Requests in the queue, by what for.", labels=["reason"])
    for reason, count in beat.waiting_for:
        waiting.add_metric([reason], count)
    waiting.add_metric(["session_busy"], num_in_lanes)
    yield waiting
    yield CounterMetricFamily("sojourn_retractions", "Requests put back for want of pages.", value=beat.retractions)
    yield CounterMetricFamily(
        "sojourn_retracted_tokens", "Tokens whose KV those requests gave up.", value=beat.retracted_tokens
    )
    yield CounterMetricFamily("sojourn_demotions", "Idle sessions whose KV went to the tree.", value=beat.demotions)
    yield CounterMetricFamily("sojourn_steps", "Steps of the engine.", value=beat.steps)
    yield GaugeMetricFamily(
        "sojourn_engine_last_step_timestamp_seconds", "When the engine last answered, on its own clock.", value=beat.at
    )


def _guesses(beat: wire.Heartbeat, card: wire.ModelCard) -> Iterator[Metric]:
    drafted = CounterMetricFamily("sojourn_spec_drafted_tokens", "Tokens guessed ahead and verified.", labels=["kind"])
    accepted = CounterMetricFamily("sojourn_spec_accepted_tokens", "Of those, the tokens that stood.", labels=["kind"])
    drafted.add_metric([card.guesser], beat.drafted_tokens)
    accepted.add_metric([card.guesser], beat.accepted_tokens)
    yield from (drafted, accepted)


def _steps(beat: wire.Heartbeat) -> Iterator[Metric]:
    seconds = HistogramMetricFamily("sojourn_step_duration_seconds", "From plan to result.", labels=["phase"])
    tokens = HistogramMetricFamily("sojourn_step_tokens", "Tokens that a step computed.", labels=["phase"])
    for phase in beat.steps_by_phase:
        seconds.add_metric([phase.phase], _cumulative(phase.seconds), phase.seconds.total)
        tokens.add_metric([phase.phase], _cumulative(phase.tokens), phase.tokens.total)
    yield from (seconds, tokens)


def _kept(kept: KeptStatistics) -> Iterator[Metric]:
    """The store of sessions."""
    yield GaugeMetricFamily("sojourn_store_sessions", "Sessions that the store keeps.", value=kept.num_sessions)
    yield GaugeMetricFamily("sojourn_store_bytes", "Bytes of their histories.", value=kept.num_bytes)
    if kept.bytes_max is not None:
        most = "Most bytes of histories; beyond, idle sessions are closed."
        yield GaugeMetricFamily("sojourn_store_bytes_capacity", most, value=kept.bytes_max)
    commits = CounterMetricFamily("sojourn_store_commits", "Transactions by how they ended.", labels=["result"])
    commits.add_metric(["kept"], sum(kept.seconds.counts) - kept.failed)
    commits.add_metric(["failed"], kept.failed)
    seconds = HistogramMetricFamily("sojourn_store_commit_duration_seconds", "That a transaction took.")
    seconds.add_metric([], _cumulative(kept.seconds), kept.seconds.total)
    yield from (commits, seconds)


def _cumulative(buckets: Buckets) -> list[tuple[str, float]]:
    """As Prometheus counts: each bucket holds all below it."""
    names = [*(str(bound) for bound in buckets.bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(buckets.counts)), strict=True))
