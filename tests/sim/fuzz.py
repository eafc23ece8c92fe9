"""`python -m tests.sim.fuzz SEEDS`: many seeds over both caches; prints what was reached, fails on a mark at zero."""

import sys
from collections import Counter

from tests.sim.swarm import Swarm

CACHES = ("radix", "none")
MARKS = (
    "resumes", "rematches", "demotions", "retractions", "readmissions", "refusals", "zombies", "fences", "overshoots",
    "match session", "match prefix", "match none", "aborts running", "aborts running prefill", "aborts first turn",
    "aborts first turn prefill", "aborts waiting", "closes", "deferred closes", "rewinds", "forks", "probes",
    "slides", "intrusions", "aborts kept",
    "full evictions", "swa evictions", "splits", "merges",
)  # fmt: skip


def run_seeds(seeds: range) -> Counter[str]:
    marks: Counter[str] = Counter()
    for seed in seeds:
        for cache in CACHES:
            try:
                marks += Swarm(seed, cache).run()
            except BaseException as error:
                error.add_note(f"seed {seed} over {cache}")
                raise
    return marks


def unreached(marks: Counter[str]) -> list[str]:
    return [mark for mark in MARKS if marks[mark] == 0]


if __name__ == "__main__":
    reached = run_seeds(range(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
    for name, count in sorted(reached.items()):
        print(f"{count:9} {name}")
    if missing := unreached(reached):
        sys.exit(f"never reached: {', '.join(missing)}")
