"""Many seeds over both worlds and both caches; prints what was reached, fails on a violation and on a mark at zero.

    python -m tests.sim.fuzz 2000                   seeds 0 .. 1999, on every core
    python -m tests.sim.fuzz --replay FILE          a seed that failed, as its file in tests/sim/seeds/ says

`bookkeeping` is world.py: caches and slots alone, with drafts. `engine` is engine_world.py: everything above a fake back end.
"""

import argparse
import multiprocessing
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.sim.storm import Storm
from tests.sim.swarm import Swarm

SEEDS = Path(__file__).parent / "seeds"
CHUNK = 10  # seeds a process takes at a time
CACHES = ("radix", "none")
WORLDS: dict[str, Callable[[int, str], Swarm | Storm]] = {"bookkeeping": Swarm, "engine": Storm}
MARKS = {
    "bookkeeping": (
        "resumes", "rematches", "demotions", "retractions", "readmissions", "refusals", "zombies", "fences",
        "overshoots", "match session", "match prefix", "match none", "aborts running", "aborts running prefill",
        "aborts first turn", "aborts first turn prefill", "aborts waiting", "closes", "deferred closes", "rewinds",
        "forks", "probes", "slides", "intrusions", "aborts kept", "full evictions", "swa evictions", "splits", "merges",
        "capped", "draft resumes", "draft drops",
    ),
    "engine": (
        "resumes", "rematches", "demotions", "retractions", "zombies", "fences", "slides", "mixed steps",
        "overshoots", "drafts accepted", "drafts rejected", "steps ahead", "drafts ahead",
        *(f"draft model {mark}" for mark in ("accepted", "resumes", "catches up", "dropped")),
        *(f"{end} {state}" for end in ("aborts", "interrupts") for state in (
            "waiting", "retracted", "between chunks", "decoding", "in flight", "in the step that finishes")),
        *(f"refused: {reason}" for reason in (
            "overlaps", "another namespace", "rewinds under a turn", "empty", "too long for the context", "too long for the pool")),
        *(f"pages of {size}" for size in (1, 2, 4, 8, 16, 64, 256)), "depth 0", "depth 1", "depth 2",
        "ends by stop", "ends by length", "plain", "calms", "closes", "deferred closes", "expiries", "rewinds", "forks",
        "fetches", "fetched pages", "fetched tails", "fetches failed", "fetches lost",
        "forks under a turn", "full evictions", "swa evictions", "splits", "merges",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One seed in one world over one cache."""

    world: str
    cache: str
    seed: int

    def run(self) -> Counter[str]:
        """What it reached, each mark under the world's name."""
        marks = WORLDS[self.world](self.seed, self.cache).run()
        return Counter({f"{self.world}: {mark}": count for mark, count in marks.items()})


@dataclass(frozen=True)
class Failure:
    case: Case
    trace: str


def cases_of(seeds: Iterable[int]) -> Iterator[Case]:
    return (Case(world, cache, seed) for seed in seeds for world in WORLDS for cache in CACHES)


def attempt(case: Case) -> Counter[str] | Failure:
    try:
        return case.run()
    except Exception:  # noqa: BLE001 - whatever it was, it is what we are looking for
        return Failure(case, traceback.format_exc())


def attempt_all(seeds: Sequence[int]) -> Counter[str] | Failure:
    """One process's share: stops at the first failure."""
    marks: Counter[str] = Counter()
    for case in cases_of(seeds):
        reached = attempt(case)
        if isinstance(reached, Failure):
            return reached
        marks += reached
    return marks


def run_seeds(count: int, jobs: int) -> Counter[str] | Failure:
    """Seeds 0 .. count - 1: what was reached, or the first failure."""
    marks: Counter[str] = Counter()
    shares = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
    if jobs == 1:
        results: Iterator[Counter[str] | Failure] = map(attempt_all, shares)
        return _gather(results, marks)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return _gather(pool.imap_unordered(attempt_all, shares), marks)


def _gather(results: Iterator[Counter[str] | Failure], marks: Counter[str]) -> Counter[str] | Failure:
    for reached in results:
        if isinstance(reached, Failure):
            return reached
        marks += reached
    return marks


def unreached(marks: Counter[str]) -> list[str]:
    return [f"{world}: {mark}" for world, wanted in MARKS.items() for mark in wanted if not marks[f"{world}: {mark}"]]


def write_seed(failure: Failure, folder: Path) -> Path:
    """A file for tests/sim/seeds: its first line is replayed by a test, for ever."""
    case = failure.case
    path = folder / f"{case.world}-{case.cache}-{case.seed}.txt"
    error = failure.trace.strip().splitlines()[-1]
    how = f"python -m tests.sim.fuzz --replay tests/sim/seeds/{path.name}"
    path.write_text(f"{case.world} {case.cache} {case.seed}\nRepeat it with: {how}\nIt failed with: {error}\n")
    return path


def read_seed(path: Path) -> Case:
    world, cache, seed = path.read_text().split()[:3]
    return Case(world, cache, int(seed))


def table(marks: Counter[str]) -> str:
    """What was reached, a column per world."""
    names = sorted({mark.split(": ", 1)[1] for mark in marks})
    head = f"{'':30}" + "".join(f"{world:>14}" for world in WORLDS)
    rows = [f"{name:30}" + "".join(f"{marks[f'{world}: {name}'] or '':>14}" for world in WORLDS) for name in names]
    return "\n".join([head, *rows])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.fuzz")
    parser.add_argument("seeds", nargs="?", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--write-to", type=Path, default=SEEDS, help="the folder for a seed that fails")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="one seed's file instead")
    asked = parser.parse_args(arguments)
    if asked.replay is not None:
        print(table(read_seed(asked.replay).run()))
        return 0
    reached = run_seeds(asked.seeds, asked.jobs)
    if isinstance(reached, Failure):
        print(reached.trace, file=sys.stderr)
        print(f"failed, written to {write_seed(reached, asked.write_to)}", file=sys.stderr)
        return 1
    print(table(reached))
    if missing := unreached(reached):
        print(f"never reached: {', '.join(missing)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
