"""Whether the engine fits this machine, worked out before anything is allocated.

Knows numbers only: bytes of weights, bytes of KV per token, what the system says is free.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.errors import ClientError

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
GIB = 1 << 30
WORKSPACE_BYTES = 96 << 20  # activations of one step, sampler, Python's own arrays
CONTEXT_STEP = 256  # the largest context that fits is reported in whole multiples of this


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes an engine takes. `kv_bytes(context)` is what both pools take when one conversation may have `context` tokens."""

    weight_bytes: int
    kv_bytes: Callable[[int], int]
    workspace_bytes: int = WORKSPACE_BYTES

    def total(self, context: int) -> int:
        return self.weight_bytes + self.workspace_bytes + self.kv_bytes(context)


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Bytes that can be taken without swapping: MemAvailable, or less where a control group limits the process."""
    meminfo = proc / "meminfo"
    if not meminfo.exists():
        return None
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    if "MemAvailable" not in fields:
        return None
    free = int(fields["MemAvailable"].split()[0]) << 10
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        remaining = _remaining(cgroup / limit, cgroup / usage)
        free = free if remaining is None else min(free, remaining)
    return free


def _remaining(limit: Path, usage: Path) -> int | None:
    if not (limit.exists() and usage.exists()):
        return None
    text = limit.read_text().strip()
    if not text.isdigit():  # "max": no limit
        return None
    return max(0, int(text) - int(usage.read_text()) + _reclaimable(limit.parent / "memory.stat"))


def _reclaimable(stat: Path) -> int:
    """Page cache that the kernel gives back before it refuses memory."""
    if not stat.exists():
        return 0
    fields = dict(line.split() for line in stat.read_text().splitlines())
    return int(fields.get("inactive_file", fields.get("total_inactive_file", "0")))


def largest_context(demand: Demand, free: int, context: int) -> int:
    """The largest context up to `context`, in steps of CONTEXT_STEP, that `free` bytes can hold; 0 if none."""
    low, high = 0, context // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if demand.total(middle * CONTEXT_STEP) <= free:
            low = middle
        else:
            high = middle - 1
    return low * CONTEXT_STEP


def check_fits(demand: Demand, free: int | None, context: int) -> None:
    """Raise ClientError with the arithmetic and what would fit, before anything is allocated."""
    if free is None or demand.total(context) <= free:
        return
    fits = largest_context(demand, free, context)
    advice = (
        f"largest context that fits: {fits:,}" if fits else "no context fits; choose a smaller model or --weights 4bit"
    )
    raise ClientError(
        f"not enough memory for a context of {context:,}: "
        f"needs {gib(demand.total(context))}, {gib(free)} free; {advice}",
        param="context",
        code="memory",
    )


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
