"""The simulators in the suite: 200 seeds over both worlds and both caches, and every seed that once failed."""

import os
from pathlib import Path

import pytest

from tests.sim.fuzz import SEEDS, WORLDS, Case, Failure, main, read_seed, run_seeds, unreached

NUM_SEEDS = 200
FAILED_ONCE = sorted(SEEDS.glob("*.txt"))


def test_seeds_find_nothing_and_reach_everything() -> None:
    """A world that is green because it never did a thing is worth nothing: every mark must be above zero."""
    marks = run_seeds(NUM_SEEDS, jobs=os.cpu_count() or 1)
    if isinstance(marks, Failure):
        pytest.fail(f"{marks.trace}\n{marks.case}")
    assert unreached(marks) == []


@pytest.mark.parametrize("path", FAILED_ONCE, ids=lambda path: path.stem)
def test_seed_that_failed_once(path: Path) -> None:
    read_seed(path).run()


@pytest.mark.parametrize("world", WORLDS)
def test_same_seed_same_run(world: str) -> None:
    assert Case(world, "radix", 7).run() == Case(world, "radix", 7).run()


def test_a_mark_never_reached_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """One seed cannot reach everything."""
    assert main(["1", "--jobs", "1"]) == 1
    assert "never reached: bookkeeping: " in capsys.readouterr().err


def test_a_failing_seed_becomes_a_file_that_says_how_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(seed: int, cache: str) -> None:
        raise AssertionError(f"{seed} over {cache}")

    monkeypatch.setitem(WORLDS, "engine", fails)
    assert main(["1", "--jobs", "1", "--write-to", str(tmp_path)]) == 1
    (path,) = tmp_path.iterdir()
    assert read_seed(path) == Case("engine", "radix", 0)
    assert f"--replay tests/sim/seeds/{path.name}" in path.read_text()
    assert "AssertionError: 0 over radix" in path.read_text()
    assert str(path) in capsys.readouterr().err
