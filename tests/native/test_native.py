"""Builds the core's own tests with AddressSanitizer and UndefinedBehaviorSanitizer, and runs them.

The build lies in build/sanitize and is incremental: the first one takes a minute or two.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "sanitize"
PROGRAMS = sorted(path.stem for path in (ROOT / "native" / "tests").glob("test_*.cpp"))


def run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-8000:]}{done.stderr[-8000:]}"


def tool(name: str) -> Path:
    """From the environment that runs the tests, else from the path."""
    beside = Path(sys.executable).with_name(name)
    found = beside if beside.exists() else shutil.which(name)
    assert found, f"{name} is not installed; `make test` installs it"
    return Path(found)


@pytest.fixture(scope="session")
def programs() -> Path:
    run(tool("cmake"), "--preset", "sanitize", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    run(tool("cmake"), "--build", "--preset", "sanitize", "--parallel", "2")
    return BUILD / "native" / "tests"


def test_there_are_native_tests() -> None:
    assert len(PROGRAMS) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_native(programs: Path, name: str) -> None:
    run(programs / name)
