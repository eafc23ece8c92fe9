"""What the front is told at its start: bounds, times and names. Frozen; knows no environment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sojourn.core.clock import Clock

MetricsCompat = Literal["vllm", "sglang"]  # whose names the metrics have besides ours


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """Times in seconds, sizes in bytes."""

    address: str  # of the engine's socket
    version: str = "0"
    body_bytes_max: int = 8 << 20
    import_bytes_max: int = 1 << 30  # of a session's file, which is no body in memory; its history: as any body
    import_kv: bool = False  # KV in such files is taken; whoever brings one could have made it up
    disk_cache: str | None = None  # the engine's folder of page files, to read from
    requests_max: int = 256  # running and waiting together; more are told to come back
    session_requests_max: int = 16  # turns that wait for one session
    tenant_requests_max: int = 128
    keep_alive_s: float = 15.0
    engine_stale_s: float = 30.0  # without a heartbeat, or busy without a step, for longer: not alive
    engine_start_s: float = 600.0  # an engine that loads its model has this long before it counts as dead
    shutdown_timeout_s: float = 30.0
    retry_after_s: int = 1
    metrics_compat: MetricsCompat | None = None
    is_strict: bool = False  # fields that nobody knows are refused on the OpenAI surfaces, too


@dataclass(frozen=True, slots=True)
class FrontWorld:
    """Time and chance, given from outside."""

    clock: Clock  # monotonic seconds
    now: Callable[[], float]  # seconds since the epoch
    date: Callable[[str], str]  # a strftime format to a date that stands still, for templates
    new_id: Callable[[], str]  # 32 hexadecimal digits
    seed: Callable[[], int]  # 64 bits
