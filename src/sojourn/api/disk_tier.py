"""What the outside is told of the disk tier: from the cache's statistics to the wire, and from there to Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sojourn.api import wire
from sojourn.core.tier import TierStatistics

TIER = "disk"


def unwritten(tier: TierStatistics, num_to_copy: int) -> wire.Unwritten:
    return wire.Unwritten(num_to_copy, tier.store.unwritten)


def disk_of(tier: TierStatistics | None, num_to_copy: int = 0) -> wire.DiskTier | None:
    if tier is None:
        return None
    store = tier.store
    return wire.DiskTier(
        is_open=store.is_open,
        is_writable=store.is_writable,
        pages=list(store.num_pages),
        num_bytes=store.num_bytes,
        bytes_max=store.bytes_max,
        written_bytes=store.written_bytes,
        read_bytes=store.read_bytes,
        evicted=list(store.evicted),
        dropped=store.dropped + tier.dropped,
        refused=store.refused + tier.refused,
        corrupt=store.corrupt,
        failed=store.failed,
        declined=tier.declined,
        fetches=tier.fetches,
        fetches_failed=tier.failed,
        fetches_slow=tier.slow,
        fetches_lost=tier.lost,
        ahead_bytes=store.ahead_bytes,
        unwritten_pages=store.unwritten,
        unwritten_sessions=num_to_copy,
    )


def families(disk: wire.DiskTier) -> Iterator[Metric]:
    """All but pages, which are counted beside those of other tiers."""
    usable = GaugeMetricFamily("sojourn_kv_tier_usable", "1: it is read; and written.", labels=["tier", "use"])
    usable.add_metric([TIER, "read"], float(disk.is_open))
    usable.add_metric([TIER, "write"], float(disk.is_writable))
    kept = GaugeMetricFamily("sojourn_kv_tier_bytes", "Bytes of page files.", labels=["tier"])
    kept.add_metric([TIER], disk.num_bytes)
    most = GaugeMetricFamily("sojourn_kv_tier_bytes_capacity", "Most bytes of page files.", labels=["tier"])
    most.add_metric([TIER], disk.bytes_max)
    demoted = CounterMetricFamily("sojourn_kv_demoted_bytes", "Bytes written to a tier.", labels=["cause", "tier"])
    demoted.add_metric(["evicted", TIER], disk.written_bytes - disk.ahead_bytes)
    demoted.add_metric(["ahead", TIER], disk.ahead_bytes)
    waiting = GaugeMetricFamily("sojourn_kv_tier_unwritten", "What a kill would lose now.", labels=["tier", "what"])
    waiting.add_metric([TIER, "sessions"], disk.unwritten_sessions)
    waiting.add_metric([TIER, "pages"], disk.unwritten_pages)
    promoted = CounterMetricFamily("sojourn_kv_promoted_bytes", "Bytes read from a tier.", labels=["cause", "tier"])
    promoted.add_metric(["prompt", TIER], disk.read_bytes)
    lost = CounterMetricFamily("sojourn_kv_tier_lost_pages", "Pages a tier does not have.", labels=["tier", "reason"])
    for reason, count in (
        ("queue_full", disk.dropped),
        ("refused", disk.refused),
        ("corrupt", disk.corrupt),
        ("error", disk.failed),
        ("faster_computed", disk.declined),
    ):
        lost.add_metric([TIER, reason], count)
    fetches = CounterMetricFamily("sojourn_kv_fetches", "Requests that waited for pages.", labels=["tier"])
    fetches.add_metric([TIER], disk.fetches)
    failed = CounterMetricFamily("sojourn_kv_fetches_failed", "Of those, computed instead.", labels=["tier", "reason"])
    for reason, count in (
        ("missing", disk.fetches_failed),
        ("slow", disk.fetches_slow),
        ("evicted", disk.fetches_lost),
    ):
        failed.add_metric([TIER, reason], count)
    yield from (usable, kept, most, demoted, waiting, promoted, lost, fetches, failed)
