"""A test of the tests: plant a fault in a copy, and the simulators stop at the first kill."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sojourn.core.errors
from tests.sim.mutants import MUTANTS, Mutant

SOURCE = Path(sojourn.core.errors.__file__).parents[1]
ROOT = Path(__file__).parents[2]
SEEDS = 150
PACKAGES = ("core", "pages", "cache", "backends", "runner", "scheduler", "audit", "engine", "sessions", "spec")
GUARD_S = 120  # against hanging
# An editable install finds packages before the path does; the copy must be the one that runs.
LAUNCHER = """
import runpy, sys
sys.meta_path = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
copy, root = sys.argv[1:3]
sys.path[:0] = [copy, root]
import sojourn.core.errors
assert sojourn.core.errors.__file__.startswith(copy), sojourn.core.errors.__file__
sys.argv = ["fuzz", *sys.argv[3:]]
runpy.run_module("tests.sim.fuzz", run_name="__main__")
"""


THE_TEN = {
    "the window list not cut with the full list",
    "tail freed from a page's middle",
    "slot kept while lent",
    "abort keeps the turn's tokens",
    "lease not returned on close",
    "speculative pages published",
    "no fence",
    "eviction ignores leases",
    "retract treated as finish",
    "a refused turn clears the running turn's claim",
}


def test_the_worst_are_among_them() -> None:
    assert {mutant.name for mutant in MUTANTS} >= THE_TEN


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_fault_is_found(mutant: Mutant, tmp_path: Path) -> None:
    copy = tmp_path / "sojourn"
    copy.mkdir()
    (copy / "__init__.py").touch()
    for package in PACKAGES:
        shutil.copytree(SOURCE / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    target = copy / mutant.path
    text = target.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.path} has changed: plant this fault anew"
    target.write_text(text.replace(mutant.old, mutant.new))
    found = tmp_path / "found"
    found.mkdir()
    options = [str(SEEDS), "--jobs", "1", "--write-to", str(found)]
    done = subprocess.run(
        [sys.executable, "-B", "-c", LAUNCHER, str(tmp_path), str(ROOT), *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode != 0, "the simulator did not notice"
    assert len(list(found.iterdir())) == 1, done.stderr
