"""What a conversation's history costs by where its KV is: in the pool, in files, nowhere. `python -m benchmarks.tiers`.

One engine, one run, length by length in turns: a history is computed; asked for again from the pool; written and dropped
from the pool, and asked for from the files; then dropped from both, and another one follows. What is timed is a request of
that history and 16 new tokens, from its submission to its first token. See benchmarks/README.md.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sojourn.app.build import World, build_parts, prepare
from sojourn.app.config import EngineOptions, cache_dir
from sojourn.core.step import SamplingParams
from sojourn.engine.events import FinishedEvent, TokensEvent
from sojourn.models.progress import SilentProgress
from sojourn.sessions.service import TurnParams

RESULTS = Path(__file__).parent / "results" / "tiers.json"
LENGTHS = (256, 512, 1024, 2048, 4096, 8000)
APPENDED = 16
GUARD_S = 600.0
ONE_TOKEN = TurnParams(SamplingParams(), 1, ignore_eos=True)


@dataclass(frozen=True)
class Row:
    """Milliseconds to the first token, medians. A gain above 1: so many times as fast as computing."""

    history: int
    pool_ms: float
    disk_ms: float
    compute_ms: float
    disk_mib: float
    pool_gain: float
    disk_gain: float


class Bench:
    """One engine over one folder, turned by hand."""

    def __init__(self, model: str, threads: int | None, folder: Path) -> None:
        options = EngineOptions(
            threads=threads, pool_tokens=8192 + 64, disk_cache=str(folder), disk_cache_bytes=8 << 30,
            disk_cache_ahead=False, strict_mem_check=0,
        )  # fmt: skip
        world = World(cache_dir(), time.monotonic, time.strftime, seed=1, free_memory=None)
        self._prepared = prepare(model, options, world, SilentProgress())
        self._parts = build_parts(
            self._prepared.model, options, self._prepared.size, self._prepared.backend, time.monotonic,
            disk=self._prepared.disk,
        )  # fmt: skip
        disk = self._prepared.disk
        assert disk is not None
        self._store = disk.store
        self._chance = np.random.default_rng(0)

    def close(self) -> None:
        self._parts.loop.shut_down()
        self._prepared.close()

    def row(self, length: int, repeats: int) -> Row:
        self.measure(length)  # does not count: memory and files are touched for the first time
        runs = [self.measure(length) for _ in range(repeats)]
        pool, disk, compute = (1000 * statistics.median(run[column] for run in runs) for column in range(3))
        return Row(length, pool, disk, compute, runs[-1][3] / 2**20, compute / pool, compute / disk)

    def measure(self, length: int) -> tuple[float, float, float, int]:
        """Seconds from pool, files and nowhere, and the bytes that were read."""
        history = self._tokens(length)
        compute = self._ask(history, "none")
        pool = self._ask(history, "prefix")
        self._save()
        ledgers = self._parts.cache.book.ledgers
        if not self._parts.cache._inner.make_room(tuple(ledger.num_pages - 1 for ledger in ledgers)):
            raise RuntimeError("the pool could not be emptied")
        before = self._store.statistics().read_bytes
        disk = self._ask(history, "disk")
        num_bytes = self._store.statistics().read_bytes - before
        self._parts.cache.flush()
        self._wait_for_disk()
        return pool, disk, compute, num_bytes

    def _ask(self, history: list[int], source: str) -> float:
        """Seconds to the first token of a request over the history, which must come from there."""
        begin = time.perf_counter()
        self._parts.service.submit([*history, *self._tokens(APPENDED)], ONE_TOKEN)
        seconds = 0.0
        while self._parts.service.has_work:
            for event in self._parts.service.step():
                if isinstance(event, TokensEvent):
                    seconds = time.perf_counter() - begin
                if isinstance(event, FinishedEvent) and event.usage.cached_source != source:
                    raise RuntimeError(f"{event.usage} is not from the {source}")
        return seconds

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._chance.integers(100, 40_000, count)]

    def _save(self) -> None:
        """Again where the disk did not keep up: what it has is not written twice."""
        dropped = -1
        while dropped != self._store.statistics().dropped:
            dropped = self._store.statistics().dropped
            self._parts.cache.save(lambda: False)
            self._wait_for_disk()

    def _wait_for_disk(self) -> None:
        if not self._store.drain(GUARD_S):
            raise RuntimeError("the disk does not keep up")


def crossover(rows: list[Row]) -> int | None:
    """The shortest history that is read faster than computed, between two measured ones by straight lines; None: none."""
    for index, row in enumerate(rows):
        gain = row.compute_ms - row.disk_ms
        if gain <= 0:
            continue
        if index == 0:
            return row.history
        before = rows[index - 1]
        loss = before.disk_ms - before.compute_ms
        return round(before.history + (row.history - before.history) * loss / (loss + gain))
    return None


def table(model: str, rows: list[Row]) -> Table:
    shown = Table(title=f"{model}: milliseconds to the first token, by where the history's KV is", title_justify="left")
    for heading in ("history", "pool", "disk", "computed", "MiB read", "pool gain", "disk gain"):
        shown.add_column(heading, justify="right")
    for row in rows:
        shown.add_row(
            f"{row.history:,}", f"{row.pool_ms:,.1f}", f"{row.disk_ms:,.1f}", f"{row.compute_ms:,.0f}",
            f"{row.disk_mib:,.0f}", f"{row.pool_gain:,.1f}", f"[bold]{row.disk_gain:,.1f}[/bold]",
        )  # fmt: skip
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a history in the pool, on disk, and computed again.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, help="compute threads (default: physical cores)")
    parser.add_argument("--repeats", type=int, default=3, help="runs per length, after one that does not count")
    parser.add_argument("--folder", type=Path, help="of the files; by default a temporary one")
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        bench = Bench(arguments.model, arguments.threads, Path(folder))
        rows: list[Row] = []
        with console.status("measuring") as status:
            for length in LENGTHS:
                status.update(f"{length:,} tokens")
                rows.append(bench.row(length, arguments.repeats))
        bench.close()
    console.print(table(arguments.model, rows))
    point = crossover(rows)
    said = "never" if point is None else f"from {point:,} tokens on" + (", or fewer" if point == LENGTHS[0] else "")
    console.print(f"reading beats computing {said}")
    if not arguments.no_write:
        RESULTS.parent.mkdir(exist_ok=True)
        found = {"model": arguments.model, "crossover": point, "rows": [asdict(row) for row in rows]}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
