"""What Prometheus is told, by a front that never ran: the engine's heartbeats and the ends of requests are given to it."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sojourn.api import wire
from sojourn.api.engine_link import EngineLink
from sojourn.api.metrics import Metrics
from sojourn.core.ids import SeqId, StepId
from sojourn.core.step import StepPlan, Work
from sojourn.core.tier import StoreStatistics, TierStatistics
from sojourn.engine.events import Usage
from sojourn.engine.meter import Histogram, StepMeter
from sojourn.sessions.recorder import KeptStatistics

CARD = wire.ModelCard("tiny", "m", "{}", "{}", 97, 512, 16, 1, "x", "f16", 1, 4, ["full"], [4096], guesser="ngram")
POOL = wire.PoolPages("full", 10, 2, 0, 1, 4, 1, 2, evictable=5, evicted=7, flushed=3)


def values(metrics: Metrics) -> dict[tuple[str, frozenset[str]], float]:
    """By name and labels' values."""
    families = text_string_to_metric_families(metrics.expose().decode())
    return {(s.name, frozenset(s.labels.values())): s.value for family in families for s in family.samples}


STORE = StoreStatistics(
    is_open=True, is_writable=False, num_pages=(5, 2), num_bytes=900, bytes_max=1000, written_bytes=70, read_bytes=60,
    evicted=(4, 1), dropped=4, corrupt=12, failed=13, swept=0, seconds_per_byte=None, ahead_bytes=30, unwritten=8, refused=9,
)  # fmt: skip
DISK = TierStatistics(
    STORE, offered=0, known=0, declined=14, fetches=21, fetched_pages=0, fetched_tokens=0, failed=22, slow=23, lost=24,
    dropped=7, refused=6,
)  # fmt: skip


KEPT = KeptStatistics(3, 700, 1000, 2, Histogram((0.001, 0.1), (4, 1, 1), 0.75))


def link_with_a_beat(disk: TierStatistics | None = None, kept: KeptStatistics | None = None) -> EngineLink:
    meter = StepMeter()
    meter.count(StepPlan(StepId(1), (Work(SeqId(0), 0, (1, 2, 3), ()),)), 3, 0.25)
    meter.count(StepPlan(StepId(2), (Work(SeqId(0), 3, (4,), ()),)), 1, 0.001)
    link = EngineLink("ipc://nowhere", lambda: 0.0)
    link.welcome = wire.Welcome("e", CARD)
    beat = wire.Heartbeat(
        at=1.0, is_busy=True, steps=2, running=1, waiting=3, admissions=3, retractions=2, sessions=5, sessions_active=2,
        sessions_idle=1, sessions_closing=1, demotions=0, pools=[POOL], retracted_tokens=41,
        steps_by_phase=list(meter.statistics()), waiting_for=[("no_pages", 2), ("in_line", 1)], disk=disk,
        drafted_tokens=31, accepted_tokens=29, kept=kept, sessions_to_copy=6,
    )  # fmt: skip
    (link.heartbeat,) = wire.events_decoder.decode(wire.encoder.encode([beat]))  # type: ignore[assignment]
    return link


def test_the_engine_is_what_its_last_heartbeat_told() -> None:
    shown = values(Metrics(link_with_a_beat(), lambda: True, "1", num_in_lanes=lambda: 4))

    def value(name: str, *labels: str) -> float:
        return shown[f"sojourn_{name}", frozenset(labels)]

    assert value("kv_evicted_pages_total", "full", "device", "pressure") == 7
    assert value("kv_evicted_pages_total", "full", "device", "flush") == 3
    assert value("kv_pinned_pages", "full") == 1
    assert value("kv_pages_leaked", "full") == 0
    assert value("kv_bytes", "full", "device") == 4096
    assert value("retractions_total") == 2
    assert value("spec_drafted_tokens_total", "ngram") == 31
    assert value("spec_accepted_tokens_total", "ngram") == 29
    reasons = ("no_pages", "in_line", "session_busy")
    assert [value("requests_waiting", reason) for reason in reasons] == [2, 1, 4]
    states = ("active", "closing", "idle", "demoted")
    assert [value("sessions", state) for state in states] == [1, 1, 1, 2]
    assert value("retracted_tokens_total") == 41
    assert value("step_tokens_sum", "prefill") == 3
    assert value("step_tokens_bucket", "prefill", "2.0") == 0
    assert value("step_tokens_bucket", "prefill", "4.0") == 1
    assert value("step_tokens_bucket", "prefill", "+Inf") == 1
    assert value("step_duration_seconds_count", "decode") == 1
    assert value("step_duration_seconds_sum", "prefill") == pytest.approx(0.25)
    assert value("step_duration_seconds_count", "mixed") == 0


def test_the_disk_tier_is_told_where_there_is_one() -> None:
    shown = values(Metrics(link_with_a_beat(DISK), lambda: True, "1"))

    def value(name: str, *labels: str) -> float:
        return shown[f"sojourn_{name}", frozenset(labels)]

    assert value("kv_pages", "tree", "full", "disk") == 5
    assert value("kv_evicted_pages_total", "full", "disk", "capacity") == 4
    assert (value("kv_tier_usable", "disk", "read"), value("kv_tier_usable", "disk", "write")) == (1, 0)
    assert (value("kv_tier_bytes", "disk"), value("kv_tier_bytes_capacity", "disk")) == (900, 1000)
    assert [value("kv_demoted_bytes_total", cause, "disk") for cause in ("evicted", "ahead")] == [40, 30]
    assert [value("kv_tier_unwritten", "disk", what) for what in ("sessions", "pages")] == [6, 8]
    assert value("kv_promoted_bytes_total", "prompt", "disk") == 60
    reasons = ("queue_full", "corrupt", "error", "faster_computed", "refused")
    assert [value("kv_tier_lost_pages_total", "disk", reason) for reason in reasons] == [11, 12, 13, 14, 15]
    assert value("kv_fetches_total", "disk") == 21
    causes = ("missing", "slow", "evicted")
    assert [value("kv_fetches_failed_total", "disk", cause) for cause in causes] == [22, 23, 24]
    assert not {name for name, labels in values(Metrics(link_with_a_beat(), lambda: True, "1")) if "disk" in labels}


def test_the_store_of_sessions_is_told_where_there_is_one() -> None:
    shown = values(Metrics(link_with_a_beat(kept=KEPT), lambda: True, "1"))

    def value(name: str, *labels: str) -> float:
        return shown[f"sojourn_store_{name}", frozenset(labels)]

    assert [value(name) for name in ("sessions", "bytes", "bytes_capacity")] == [3, 700, 1000]
    assert (value("commits_total", "kept"), value("commits_total", "failed")) == (4, 2)
    assert value("commit_duration_seconds_count") == 6
    assert value("commit_duration_seconds_sum") == pytest.approx(0.75)
    assert value("commit_duration_seconds_bucket", "0.1") == 5
    assert not {name for name, _ in values(Metrics(link_with_a_beat(), lambda: True, "1")) if "_store_" in name}


def test_nothing_is_told_of_an_engine_that_is_down() -> None:
    names = {name for name, _ in values(Metrics(EngineLink("ipc://nowhere", lambda: 0.0), lambda: False, "1"))}
    assert "sojourn_ready" in names
    assert not {name for name in names if name.startswith(("sojourn_kv", "sojourn_step"))}


@pytest.mark.parametrize(("source", "queried", "hit"), [("prefix", 40, 30), ("none", 40, 30), ("session", 0, 0)])
def test_the_prefix_cache_is_asked_by_those_who_do_not_go_on_where_they_were(
    source: str, queried: int, hit: int
) -> None:
    metrics = Metrics(EngineLink("ipc://nowhere", lambda: 0.0), lambda: True, "1")
    usage = Usage(40, 30, 5, 10.0, 10.5, 11.0, 13.0, cached_source=source)
    metrics.ended(wire.Ended(1, "stop", usage, 5), is_session=True)
    shown = values(metrics)
    assert shown["sojourn_prefix_cache_queried_tokens_total", frozenset()] == queried
    assert shown["sojourn_prefix_cache_hit_tokens_total", frozenset()] == hit
    assert shown["sojourn_cached_tokens_total", frozenset([source])] == 30


def test_what_was_read_for_a_prompt_is_told_apart_from_what_was_in_the_pool() -> None:
    metrics = Metrics(EngineLink("ipc://nowhere", lambda: 0.0), lambda: True, "1")
    usage = Usage(40, 30, 5, 10.0, 10.5, 11.0, 13.0, cached_source="disk", read_tokens=20)
    metrics.ended(wire.Ended(1, "stop", usage, 5), is_session=True)
    shown = values(metrics)
    assert shown["sojourn_cached_tokens_total", frozenset(["disk"])] == 20
    assert shown["sojourn_cached_tokens_total", frozenset(["prefix"])] == 10
    assert shown["sojourn_prefix_cache_hit_tokens_total", frozenset()] == 30


def test_our_numbers_by_names_that_boards_know() -> None:
    metrics = Metrics(link_with_a_beat(), lambda: True, "1", "vllm")
    for is_session in (True, False):
        metrics.ended(
            wire.Ended(1, "stop", Usage(40, 30, 5, 10.0, 10.5, 11.0, 13.0, 0, "prefix"), 5), is_session=is_session
        )
    shown = values(metrics)
    tiny = frozenset(["tiny"])
    assert shown["vllm:num_requests_running", tiny] == 1
    assert shown["vllm:num_requests_waiting", tiny] == 3
    assert shown["vllm:generation_tokens_total", tiny] == 10
    assert shown["vllm:prefix_cache_queries_total", tiny] == 80
    assert shown["vllm:prefix_cache_hits_total", tiny] == 60
    assert shown["vllm:time_to_first_token_seconds_count", tiny] == 2, "of both modes"
    assert shown["vllm:time_to_first_token_seconds_bucket", tiny | {"0.75"}] == 0
    assert shown["vllm:time_to_first_token_seconds_bucket", tiny | {"1.0"}] == 2
    assert shown["vllm:kv_cache_usage_perc", tiny] == pytest.approx((1 + 1) / 10)
    sglang = values(Metrics(link_with_a_beat(), lambda: True, "1", "sglang"))
    assert sglang["sglang:num_running_reqs", tiny] == 1
    assert sglang["sglang:token_usage", tiny] == pytest.approx(0.2)
    assert not {name for name, _ in values(Metrics(link_with_a_beat(), lambda: True, "1")) if ":" in name}


def test_others_names_too_are_silent_of_an_engine_that_is_down() -> None:
    names = {name for name, _ in values(Metrics(EngineLink("ipc://nowhere", lambda: 0.0), lambda: False, "1", "vllm"))}
    assert "vllm:prompt_tokens_total" in names
    assert not {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"} & names
