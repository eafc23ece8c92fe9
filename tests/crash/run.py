"""`kill -9` under load, again and again: `python -m tests.crash.run 200 --seed 1`, or `make crash KILLS=200`.

Callers hold sessions and talk; after a random number of answers the engine, the front or all processes of the server are
killed. Then everything that was told must be there, and everybody goes on. Stops at the first thing that is not so.
"""

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import httpx

from tests.crash.callers import Callers
from tests.support.server import GUARD_S, Server, serving

SIZE = ("--context", "8192", "--pool-tokens", "16384", "--chunk", "64")
VICTIMS = ("engine", "front", "all")
LEVELS = ("turn", "token")
CALLERS = 4
TURNS_MAX = 300  # of one session; then its caller has said enough


class Crash:
    """One server after another on one store."""

    def __init__(self, models: Path, data: Path, rng: Random, options: Sequence[str] = ()) -> None:
        self._models = models
        self._data = data
        self._rng = rng
        self._options = options
        self._rounds = 0
        self.kills: Counter[str] = Counter()
        self.answers = 0
        self._struck_at = 0.0
        self.ready_after: list[float] = []  # seconds from a kill to the next readiness

    def run(self, kills: int) -> None:
        """Kill that often, then let the last server end in peace and look at what is left."""
        left = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
        self._rng.shuffle(left)
        callers = self._fresh_callers()
        while left:
            with self._server() as server:
                self._meet(callers, server)
                while left:
                    victim = left.pop()
                    self._strike(callers, server, victim)
                    if victim == "all":
                        break
                    self._revive(callers, server)
                    if min(len(told) for told in callers.told.values()) > TURNS_MAX:
                        callers = self._change(callers, server)
        with self._server() as server:
            self._meet(callers, server)
            assert server.stop() == 0
        (folder,) = self._data.iterdir()
        assert sorted(path.name for path in folder.iterdir()) == ["sessions.db"], "orphan files"

    def _server(self) -> AbstractContextManager[Server]:
        level = self._rng.choice(LEVELS)
        place = ("--data-dir", str(self._data), "--durability", level)
        return serving(self._models, *SIZE, *place, *self._options)

    def _fresh_callers(self) -> Callers:
        self._rounds += 1
        return Callers([f"r{self._rounds}s{number}" for number in range(CALLERS)])

    def _meet(self, callers: Callers, server: Server) -> None:
        """A server that has just started knows everybody, or nobody yet."""
        names = {one["id"] for one in server.http.get("/v1/sessions").json()["data"]}
        if names:
            assert names == set(callers.told)
            callers.check(server)
        else:
            callers.open(server)

    def _change(self, callers: Callers, server: Server) -> Callers:
        for name in callers.told:
            assert server.http.get(f"/v1/sessions/{name}").json()["tokens"] == callers.num_tokens(name)
            assert server.http.delete(f"/v1/sessions/{name}").json()["deleted"] is True
        fresh = self._fresh_callers()
        fresh.open(server)
        return fresh

    def _strike(self, callers: Callers, server: Server, victim: str) -> None:
        count = self._rng.randrange(1, 25)
        callers.start(server)
        callers.wait_for(count)
        self._struck_at = time.monotonic()
        parts = ("engine", "front") if victim == "all" else (victim,)
        pids = [server.pid_of(part) for part in parts]
        for pid in [server.process.pid, *pids] if victim == "all" else pids:
            os.kill(pid, signal.SIGKILL)
        callers.join()
        if victim == "all":
            server.process.wait(GUARD_S)
        self.kills[victim] += 1
        self.answers += count

    def _revive(self, callers: Callers, server: Server) -> None:
        server.http.close()
        server.http = httpx.Client(base_url=server.url, timeout=GUARD_S)
        _until_ready(server)
        self.ready_after.append(time.monotonic() - self._struck_at)
        callers.check(server)


def _until_ready(server: Server) -> None:
    """A front that is being started lets connections wait, or breaks those that the last one had accepted."""
    ends_at = time.monotonic() + GUARD_S
    while True:
        try:
            server.wait_until_ready()
            return
        except httpx.TransportError:
            assert time.monotonic() < ends_at, server.stderr()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=1)
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        models, data = Path(folder) / "models", Path(folder) / "data"
        models.mkdir()
        crash = Crash(models, data, Random(given.seed), options)
        began = time.monotonic()
        crash.run(given.kills)
    ready = sorted(crash.ready_after)
    shown = ", ".join(f"{count} of {victim}" for victim, count in sorted(crash.kills.items()))
    print(f"{crash.kills.total()} kills ({shown}) in {time.monotonic() - began:.0f} s; nothing that was told is lost")
    if ready:
        print(f"ready again after {ready[len(ready) // 2]:.1f} s in the middle, {ready[-1]:.1f} s at most")


if __name__ == "__main__":
    main()
