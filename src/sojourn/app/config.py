"""What the person chose and what the machine offers: engine options, the cache folder, the number of threads.

The only module that reads the environment. Knows no model: bounds that depend on one are checked in `sizing.py`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sojourn.backends.protocol import KvDtype
from sojourn.core.bounds import SEED_MAX, check_choice, check_flag, check_range, check_text
from sojourn.core.errors import ClientError
from sojourn.pages.sizing import PAGE_SIZE_MAX, is_page_size

CONTEXT_DEFAULT = 8192  # tokens; less where the model's own context is shorter
TOKENS_MAX = 2**31 - 1
THREADS_MAX = 256
DRAFTS_MAX = 64
NO_DRAFTS, NGRAM = "off", "ngram"  # of `speculate`; anything else is a model
WeightsWidth = Literal["4bit", "8bit", "f32"]
CacheKind = Literal["radix", "none"]
CPU_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Everything `Engine` takes but the model's name. Lengths in tokens; None means: chosen from model and machine."""

    context: int | None = None
    weights: WeightsWidth | None = None
    kv_dtype: KvDtype = "f16"
    threads: int | None = None
    page_size: int = 16
    pool_tokens: int | None = None
    max_running: int = 8
    chunk: int = 512
    cache: CacheKind = "radix"
    strict_mem_check: int = 1
    seed: int | None = None
    overlap: bool | None = None
    speculate: str = NO_DRAFTS
    drafts_max: int = 8
    disk_cache: str | None = None  # a folder
    disk_cache_bytes: int = 4 << 30
    disk_cache_ahead: bool = True

    def check(self) -> None:
        """Raise ClientError on the first option that no model could satisfy; it names the option and the bound."""
        check_range("context", self.context, 2, TOKENS_MAX, optional=True)
        check_range("pool_tokens", self.pool_tokens, 2, TOKENS_MAX, optional=True)
        check_range("threads", self.threads, 1, THREADS_MAX, optional=True)
        check_range("page_size", self.page_size, 1, PAGE_SIZE_MAX)
        check_range("max_running", self.max_running, 1, 1024)
        check_range("chunk", self.chunk, 1, 65536)
        check_range("strict_mem_check", self.strict_mem_check, 0, 2)
        check_range("seed", self.seed, 0, SEED_MAX, optional=True)
        check_range("drafts_max", self.drafts_max, 1, DRAFTS_MAX)
        check_range("disk_cache_bytes", self.disk_cache_bytes, 1 << 20, 1 << 50)
        check_text("speculate", self.speculate)
        check_flag("disk_cache_ahead", self.disk_cache_ahead)
        if self.overlap is not None:
            check_flag("overlap", self.overlap)
        if not is_page_size(self.page_size):
            raise ClientError(f"page_size must be a power of two, got {self.page_size}", param="page_size")
        check_choice("weights", self.weights, get_args(WeightsWidth), optional=True)
        check_choice("kv_dtype", self.kv_dtype, get_args(KvDtype))
        check_choice("cache", self.cache, get_args(CacheKind))
        if self.disk_cache is not None and self.cache == "none":
            raise ClientError('disk_cache needs a cache above it: cache must be "radix"', param="disk_cache")
        if self.context is not None and self.pool_tokens is not None and self.context > self.pool_tokens:
            raise ClientError(
                f"context {self.context:,} is larger than the pool of {self.pool_tokens:,} tokens", param="context"
            )


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where models and their packed forms are kept: $SOJOURN_CACHE, else $XDG_CACHE_HOME/sojourn, else ~/.cache/sojourn."""
    environ = os.environ if environ is None else environ
    if own := environ.get("SOJOURN_CACHE"):
        return Path(own).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sojourn"


def data_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where sessions are kept: $SOJOURN_DATA, else $XDG_DATA_HOME/sojourn, else ~/.local/share/sojourn."""
    environ = os.environ if environ is None else environ
    if own := environ.get("SOJOURN_DATA"):
        return Path(own).expanduser()
    return Path(environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "sojourn"


def traces_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether OpenTelemetry's own variables ask for traces."""
    environ = os.environ if environ is None else environ
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    asking = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return any(environ.get(name) for name in asking)


def physical_cores(allowed: frozenset[int] | None = None, topology: Path = CPU_TOPOLOGY) -> int:
    """Physical cores this process may run on: its affinity, with the two hardware threads of a core counted once."""
    cpus = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    cores = set()
    for cpu in cpus:
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return max(1, len(cores))


def compute_threads(options: EngineOptions) -> int:
    """As asked for, else one per physical core."""
    return options.threads or physical_cores()


def overlaps(options: EngineOptions, cores: int | None = None) -> bool:
    """Whether steps are planned beside the one that runs: as asked for, else where the compute threads leave a core for it."""
    if options.overlap is not None:
        return options.overlap
    return compute_threads(options) < (physical_cores() if cores is None else cores)
