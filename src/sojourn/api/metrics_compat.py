"""Our numbers under the names that boards and routers made for other servers know. Read from our own registry; adds none.

Labels of ours are summed up; the one label is `model_name`. A name is here only where it means the same.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sojourn.api.settings import MetricsCompat

NAMES: Mapping[MetricsCompat, Mapping[str, str]] = {
    "vllm": {
        "num_requests_running": "requests_running",
        "num_requests_waiting": "requests_waiting",
        "num_preemptions": "retractions",
        "prompt_tokens": "prompt_tokens",
        "generation_tokens": "completion_tokens",
        "prefix_cache_queries": "prefix_cache_queried_tokens",
        "prefix_cache_hits": "prefix_cache_hit_tokens",
        "spec_decode_num_draft_tokens": "spec_drafted_tokens",
        "spec_decode_num_accepted_tokens": "spec_accepted_tokens",
        "time_to_first_token_seconds": "time_to_first_token_seconds",
        "e2e_request_latency_seconds": "request_duration_seconds",
        "request_queue_time_seconds": "queue_duration_seconds",
    },
    "sglang": {
        "num_running_reqs": "requests_running",
        "num_queue_reqs": "requests_waiting",
        "prompt_tokens": "prompt_tokens",
        "generation_tokens": "completion_tokens",
        "cached_tokens": "cached_tokens",
        "time_to_first_token_seconds": "time_to_first_token_seconds",
        "e2e_request_latency_seconds": "request_duration_seconds",
        "queue_time_seconds": "queue_duration_seconds",
    },
}
USAGE: Mapping[MetricsCompat, str] = {"vllm": "kv_cache_usage_perc", "sglang": "token_usage"}  # both from 0 to 1


class CompatCollector:
    """For a registry of its own, beside ours."""

    def __init__(self, ours: CollectorRegistry, prefix: MetricsCompat) -> None:
        self._ours = ours
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        families = {family.name: family for family in self._ours.collect()}
        model = next(sample.labels["model"] for sample in families["sojourn_build_info"].samples)
        for theirs, name in NAMES[self._prefix].items():
            family = families.get(f"sojourn_{name}")
            if family is not None:
                yield _renamed(family, f"{self._prefix}:{theirs}", model)
        if "sojourn_kv_pages" in families:
            usage = GaugeMetricFamily(
                f"{self._prefix}:{USAGE[self._prefix]}", "Pages that nobody could have.", labels=["model_name"]
            )
            usage.add_metric([model], _usage(families))
            yield usage


def _renamed(family: Metric, name: str, model: str) -> Metric:
    values: Counter[str] = Counter()
    buckets: Counter[str] = Counter()
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        if suffix == "_bucket":
            buckets[sample.labels["le"]] += sample.value  # type: ignore[assignment]
        else:
            values[suffix] += sample.value  # type: ignore[assignment]
    made: Metric
    if family.type == "histogram":
        made = HistogramMetricFamily(name, family.documentation, labels=["model_name"])
        if buckets:
            made.add_metric([model], sorted(buckets.items(), key=lambda bucket: float(bucket[0])), values["_sum"])
    elif family.type == "counter":
        made = CounterMetricFamily(name, family.documentation, labels=["model_name"])
        made.add_metric([model], values["_total"])
    else:
        made = GaugeMetricFamily(name, family.documentation, labels=["model_name"])
        made.add_metric([model], values[""])
    return made


def _usage(families: Mapping[str, Metric]) -> float:
    """Of the fullest pool: pages that running requests own, or lean on. Nobody waits for a draft model's."""
    used: Counter[str] = Counter()
    for name in ("sojourn_kv_pages", "sojourn_kv_pinned_pages"):
        for sample in families[name].samples:
            if sample.labels.get("state", "running") == "running":
                used[sample.labels["pool"]] += sample.value  # type: ignore[assignment]
    totals = {sample.labels["pool"]: sample.value for sample in families["sojourn_kv_pages_capacity"].samples}
    return max(used[pool] / total for pool, total in totals.items() if pool != "draft")
