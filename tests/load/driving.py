"""Callers on a running server for a while, beside one that looks: what the load run and the soak have in common.

Raises when an answer comes that was not asked for, when `/live` does not say 200, when the pages do not add up at a look or
at the end (no session, nothing cached: all free), and when a part of the server was started again.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from tests.load.asking import Asking, pause
from tests.load.caller import check
from tests.load.memory import Growth, resident_bytes
from tests.support.server import GUARD_S, Server

SAMPLE_S = 1.0
FLUSHES_MAX = 200
PARTS = ("engine", "front")


class Runs(Protocol):
    """What a run is made of."""

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Until it does not go on, leaving no session behind."""
        ...


Cast = Callable[[Asking], Sequence[Runs]]


@dataclass(slots=True)
class Summary:
    seconds: float = 0.0
    done: "Counter[str]" = field(default_factory=Counter)
    growth: dict[str, Growth] = field(default_factory=lambda: {part: Growth() for part in PARTS})


async def _watch(server: Server, summary: Summary, pids: dict[str, int], ended: asyncio.Event) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=GUARD_S) as http:
        while not ended.is_set():
            live = await http.get("/live")
            check(live.status_code == 200, "/live", live.text)
            pools = (await http.get("/v1/pools")).json()
            check(pools["identity"] is True and not any(p["leaked"] for p in pools["pools"]), "the pages", pools)
            summary.done["looks at /live and /v1/pools"] += 1
            for part, pid in pids.items():
                summary.growth[part].add(time.monotonic(), resident_bytes(pid))
            await pause(SAMPLE_S)


async def _drive(server: Server, summary: Summary, pids: dict[str, int], seconds: float, cast: Cast) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    ended = asyncio.Event()
    async with httpx.AsyncClient(base_url=server.url, timeout=GUARD_S, limits=limits) as http:
        callers = cast(Asking(http, summary.done))
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(server, summary, pids, ended))
            async with asyncio.TaskGroup() as running:
                for caller in callers:
                    running.create_task(caller.run(lambda: time.monotonic() < begun + seconds))
            ended.set()
            await watching
    summary.seconds = time.monotonic() - begun


def check_quiet(server: Server) -> None:
    """Q of the table of scenarios: no session, nothing running, and every page free once the cache is dropped."""
    http = server.http
    check(http.get("/v1/sessions").json()["data"] == [], "sessions at the end", http.get("/v1/sessions").text)
    for path in ("/live", "/ready", "/health?deep=1"):
        check(http.get(path).status_code == 200, path, http.get(path).text)
    for _ in range(FLUSHES_MAX):
        flushed = http.post("/v1/pools/flush")
        if flushed.status_code == 200:
            break
    check(flushed.status_code == 200, "flush", flushed.text)
    shown = http.get("/v1/pools").json()
    check(shown["identity"] is True, "identity", shown)
    for pool in shown["pools"]:
        check(pool["free"] + pool["reserved"] == pool["total"], "free + reserved == total", pool)
        check((pool["fenced"], pool["leaked"]) == (0, 0), "fenced and leaked", pool)


def drive(server: Server, summary: Summary, *, seconds: float, cast: Cast) -> None:
    """Raises UnexpectedError (in a group) for whatever does not hold."""
    pids = {part: server.pid_of(part) for part in PARTS}
    try:
        asyncio.run(_drive(server, summary, pids, seconds, cast))
    except BaseException:
        sys.stderr.write("".join(line for line in server.log if not line.startswith("INFO"))[-8000:])
        raise
    check_quiet(server)
    check({part: server.pid_of(part) for part in pids} == pids, "a part was started again", server.stderr()[-2000:])
