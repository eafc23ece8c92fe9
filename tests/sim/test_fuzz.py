"""The simulator in the suite: 200 seeds over both caches, and every seed that once failed."""

from pathlib import Path

import pytest

from tests.sim.fuzz import run_seeds, unreached
from tests.sim.swarm import Swarm

SEEDS = 200
FAILED_ONCE = sorted((Path(__file__).parent / "seeds").glob("*.txt"))


def test_seeds_find_nothing_and_reach_everything() -> None:
    """A world that is green because it never did a thing is worth nothing: every mark must be above zero."""
    marks = run_seeds(range(SEEDS))
    assert unreached(marks) == []


@pytest.mark.parametrize("path", FAILED_ONCE, ids=lambda path: path.stem)
def test_seed_that_failed_once(path: Path) -> None:
    seed, cache = path.read_text().split()[:2]
    Swarm(int(seed), cache).run()


def test_same_seed_same_run() -> None:
    assert Swarm(7, "radix").run() == Swarm(7, "radix").run()
