"""A test of the tests: plant a fault in a copy, and the simulator stops at the first kill."""

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
PACKAGES = ("core", "pages", "cache", "audit", "sessions")
GUARD_S = 120  # against hanging
# An editable install finds packages before the path does; the copy must be the one that runs.
LAUNCHER = """
import runpy, sys
sys.meta_path = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
copy, root, seeds = sys.argv[1:]
sys.path[:0] = [copy, root]
import sojourn.core.errors
assert sojourn.core.errors.__file__.startswith(copy), sojourn.core.errors.__file__
sys.argv = ["fuzz", seeds]
runpy.run_module("tests.sim.fuzz", run_name="__main__")
"""


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
    done = subprocess.run(
        [sys.executable, "-B", "-c", LAUNCHER, str(tmp_path), str(ROOT), str(SEEDS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode != 0, "the simulator did not notice"
    assert "seed " in done.stderr.splitlines()[-1], done.stderr
