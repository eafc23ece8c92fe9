"""The disk tier as Prometheus is told of it."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sojourn.core.tier import TierStatistics

TIER = "disk"


def families(tier: TierStatistics, sessions_to_copy: int) -> Iterator[Metric]:
    """All but pages, which are counted beside those of other tiers."""
    store = tier.store
    usable = GaugeMetricFamily("sojourn_kv_tier_usable", "1: it is read; and written.", labels=["tier", "use"])
    usable.add_metric([TIER, "read"], float(store.is_open))
    usable.add_metric([TIER, "write"], float(store.is_writable))
    kept = GaugeMetricFamily("sojourn_kv_tier_bytes", "Bytes of page files.", labels=["tier"])
    kept.add_metric([TIER], store.num_bytes)
    most = GaugeMetricFamily("sojourn_kv_tier_bytes_capacity", "Most bytes of page files.", labels=["tier"])
    most.add_metric([TIER], store.bytes_max)
    demoted = CounterMetricFamily("sojourn_kv_demoted_bytes", "Bytes written to a tier.", labels=["cause", "tier"])
    demoted.add_metric(["evicted", TIER], store.written_bytes - store.ahead_bytes)
    demoted.add_metric(["ahead", TIER], store.ahead_bytes)
    waiting = GaugeMetricFamily("sojourn_kv_tier_unwritten", "What a kill would lose now.", labels=["tier", "what"])
    waiting.add_metric([TIER, "sessions"], sessions_to_copy)
    waiting.add_metric([TIER, "pages"], store.unwritten)
    promoted = CounterMetricFamily("sojourn_kv_promoted_bytes", "Bytes read from a tier.", labels=["cause", "tier"])
    promoted.add_metric(["prompt", TIER], store.read_bytes)
    lost = CounterMetricFamily("sojourn_kv_tier_lost_pages", "Pages a tier does not have.", labels=["tier", "reason"])
    for reason, count in (
        ("queue_full", store.dropped + tier.dropped),
        ("refused", store.refused + tier.refused),
        ("corrupt", store.corrupt),
        ("error", store.failed),
        ("faster_computed", tier.declined),
    ):
        lost.add_metric([TIER, reason], count)
    fetches = CounterMetricFamily("sojourn_kv_fetches", "Requests that waited for pages.", labels=["tier"])
    fetches.add_metric([TIER], tier.fetches)
    failed = CounterMetricFamily("sojourn_kv_fetches_failed", "Of those, computed instead.", labels=["tier", "reason"])
    for reason, count in (
        ("missing", tier.failed),
        ("slow", tier.slow),
        ("evicted", tier.lost),
    ):
        failed.add_metric([TIER, reason], count)
    yield from (usable, kept, most, demoted, waiting, promoted, lost, fetches, failed)
