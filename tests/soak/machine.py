"""How busy the machine was with other things: what explains times that differ, where the server does not. Linux only."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.load.asking import pause
from tests.soak.probe import Times

SAMPLE_S = 5.0


def busy_seconds() -> float:
    """Of all processors together, since the machine was started; what waits for a disk counts as idle."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def seconds_of(pid: int) -> float:
    user, system = map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13])
    return (user + system) / os.sysconf("SC_CLK_TCK")


class Onlooker:
    """Samples the processors that are taken by neither the server nor its callers."""

    def __init__(self, pids: Sequence[int], others: Times) -> None:
        self._pids = (*pids, os.getpid())
        self._others = others

    async def run(self, goes_on: Callable[[], bool]) -> None:
        at, taken = time.monotonic(), self._taken()
        while goes_on():
            await pause(SAMPLE_S)
            now, then = time.monotonic(), self._taken()
            self._others.samples.append((at, (then - taken) / (now - at)))
            at, taken = now, then

    def _taken(self) -> float:
        return busy_seconds() - sum(seconds_of(pid) for pid in self._pids)
