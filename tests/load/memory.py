"""Resident memory of a process and how fast it grows. Linux only, as the server's parts are read by their process ids."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MIB = 2**20


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through (x, y) with the least squares; 0 for fewer than two different x."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / max(1, count)
    mean_y = sum(y for _, y in points) / max(1, count)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


@dataclass(slots=True)
class Growth:
    """Samples of one process: (seconds, bytes)."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def add(self, at: float, size: int) -> None:
        self.samples.append((at, float(size)))

    @property
    def settled(self) -> list[tuple[float, float]]:
        """Without the first third of the time: pools are touched, caches fill and allocators grow until then."""
        first, last = self.samples[0][0], self.samples[-1][0]
        return [sample for sample in self.samples if sample[0] >= first + (last - first) / 3]

    @property
    def mib_per_minute(self) -> float:
        return slope(self.settled) * 60 / MIB

    @property
    def mib(self) -> tuple[float, float]:
        """At the end of the warm-up and at the end."""
        return self.settled[0][1] / MIB, self.settled[-1][1] / MIB
