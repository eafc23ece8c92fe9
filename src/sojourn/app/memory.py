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
    for group in _groups(proc, cgroup):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            remaining = _remaining(group / limit, group / usage)
            free = free if remaining is None else min(free, remaining)
    return free


def _groups(proc: Path, cgroup: Path) -> list[Path]:
    """Folders of the control groups that this process is in, each with those above it: the tightest limit holds.

    A line is `hierarchy:controllers:path`; version 2 has one line, without controllers. The path may lead out of what
    is mounted here (`/..`, or one of the host's names), and only the mount's root is ours to read then.
    """
    membership = proc / "self" / "cgroup"
    lines = membership.read_text().splitlines() if membership.exists() else []
    paths = {cgroup: "", cgroup / "memory": ""}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            paths[cgroup / "memory" if controllers else cgroup] = path.strip("/")
    groups = []
    for root, path in paths.items():
        inner = root / path
        groups += (
            [root]
            if ".." in inner.parts
            else [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
        )
    return groups


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


def check_fits(demand: Demand, free: int | None, tokens: int, *, is_pool: bool = False) -> None:
    """Raise ClientError with the arithmetic and what would fit, before anything is allocated.

    `tokens` is what the pool holds: a whole context, or what was asked for by `pool_tokens` (`is_pool`); the refusal
    names the option that decides.
    """
    if free is None or demand.total(tokens) <= free:
        return
    wanted, what, param = f"a context of {tokens:,}", "context", "context"
    if is_pool:
        wanted, what, param = f"a pool of {tokens:,} tokens", "pool", "pool_tokens"
    fits = largest_context(demand, free, tokens)
    advice = (
        f"largest {what} that fits: {fits:,}" if fits else f"no {what} fits; choose a smaller model or --weights 4bit"
    )
    raise ClientError(
        f"not enough memory for {wanted}: needs {gib(demand.total(tokens))}, {gib(free)} free; {advice}",
        param=param,
        code="memory",
    )


def gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
