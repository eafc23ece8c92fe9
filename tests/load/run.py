"""Callers of every kind on a running server for a while: `make load`, or `python -m tests.load.run MINUTES`.

Holds when no answer came that was not asked for, `/live` always said 200, the pages added up at every look and at the
end (no session, nothing cached: all free), neither part of the server was started again, and neither grew.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
from rich.console import Console
from rich.table import Table

from sojourn.app.config import cache_dir
from tests.load.asking import Asking, pause
from tests.load.caller import Caller, Sizes, check
from tests.load.memory import Growth, resident_bytes
from tests.support.server import GUARD_S, Server, serving

CALLERS = 64
SAMPLE_S = 1.0
GROWTH_MAX = 1.0  # MiB a minute
SMOLLM2 = ("--context", "1024", "--pool-tokens", "8192", "--chunk", "128", "--threads", "2")
SMOLLM2_SIZES = Sizes("smollm2", vocab=49_152, context=1024, long_prompt=400)


@dataclass(slots=True)
class Summary:
    seconds: float = 0.0
    done: "Counter[str]" = field(default_factory=Counter)
    growth: dict[str, Growth] = field(default_factory=lambda: {"engine": Growth(), "front": Growth()})

    def table(self) -> Table:
        shown = Table(title=f"{CALLERS} callers, {self.seconds:,.0f} s", title_justify="left")
        shown.add_column("what")
        shown.add_column("count", justify="right")
        for name in sorted(self.done):
            shown.add_row(name, f"{self.done[name]:,}")
        for part, growth in self.growth.items():
            low, high = growth.mib
            shown.add_row(f"{part}: resident MiB after warm-up, at the end", f"{low:,.1f}, {high:,.1f}")
            shown.add_row(f"{part}: growth, MiB a minute", f"{growth.mib_per_minute:+.2f}")
        return shown


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


async def _drive(
    server: Server, summary: Summary, pids: dict[str, int], *, seconds: float, seed: int, sizes: Sizes
) -> None:
    begun, ended = time.monotonic(), asyncio.Event()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=4 * CALLERS)
    async with httpx.AsyncClient(base_url=server.url, timeout=GUARD_S, limits=limits) as http:
        asking = Asking(http, summary.done)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(server, summary, pids, ended))
            async with asyncio.TaskGroup() as callers:
                for number in range(CALLERS):
                    caller = Caller(number, seed, asking, sizes)
                    callers.create_task(caller.run(lambda: time.monotonic() < begun + seconds))
            ended.set()
            await watching
    summary.seconds = time.monotonic() - begun


def _check_quiet(server: Server) -> None:
    """Q of the table of scenarios: no session, nothing running, and every page free once the cache is dropped."""
    http = server.http
    check(http.get("/v1/sessions").json()["data"] == [], "sessions at the end", http.get("/v1/sessions").text)
    for path in ("/live", "/ready", "/health?deep=1"):
        check(http.get(path).status_code == 200, path, http.get(path).text)
    for _ in range(200):
        flushed = http.post("/v1/pools/flush")
        if flushed.status_code == 200:
            break
    check(flushed.status_code == 200, "flush", flushed.text)
    shown = http.get("/v1/pools").json()
    check(shown["identity"] is True, "identity", shown)
    for pool in shown["pools"]:
        check(pool["free"] + pool["reserved"] == pool["total"], "free + reserved == total", pool)
        check((pool["fenced"], pool["leaked"]) == (0, 0), "fenced and leaked", pool)


def run(server: Server, *, seconds: float, seed: int, sizes: Sizes, growth_max: float) -> Summary:
    """Raises UnexpectedError (in a group) for whatever does not hold."""
    summary = Summary()
    pids = {part: server.pid_of(part) for part in ("engine", "front")}
    try:
        asyncio.run(_drive(server, summary, pids, seconds=seconds, seed=seed, sizes=sizes))
    except BaseException:
        sys.stderr.write("".join(line for line in server.log if not line.startswith("INFO"))[-8000:])
        raise
    _check_quiet(server)
    check({part: server.pid_of(part) for part in pids} == pids, "a part was started again", server.stderr()[-2000:])
    for part, growth in summary.growth.items():
        check(growth.mib_per_minute < growth_max, f"growth of the {part}, MiB a minute", growth.mib_per_minute)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server with every kind of caller.")
    parser.add_argument("minutes", type=float, nargs="?", default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth-max", type=float, default=GROWTH_MAX, help="MiB a minute")
    arguments = parser.parse_args()
    console = Console()
    seconds, seed, most = 60 * arguments.minutes, arguments.seed, arguments.growth_max
    with serving(cache_dir(), *SMOLLM2, model="smollm2", cache=cache_dir()) as server:
        summary = run(server, seconds=seconds, seed=seed, sizes=SMOLLM2_SIZES, growth_max=most)
    console.print(summary.table())
    console.print("every answer was one that was asked for; nothing leaked")


if __name__ == "__main__":
    main()
