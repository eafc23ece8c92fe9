"""What a fresh machine lacks is said in one line, before anything is created."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PREFLIGHT = Path(__file__).parents[1] / "tools" / "preflight.sh"


def preflight(folder: Path, python: str = "python3", **programs: str) -> subprocess.CompletedProcess[str]:
    """Run it where only `programs` (name to a shell script) can be found."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "CXX"} | {"PATH": str(folder)}
    return subprocess.run(
        ["/bin/sh", str(PREFLIGHT), python], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def python_without(word: str) -> str:
    """A Python that fails to answer the question with `word` in it."""
    return f'case "$*" in *"{word}"*) exit 1;; esac\nexec {shlex.quote(sys.executable)} "$@"'


PYTHON = python_without("nothing of the kind")
COMPILER = "exit 0"


def test_a_complete_machine_is_told_nothing(tmp_path: Path) -> None:
    process = preflight(tmp_path, python3=PYTHON, **{"g++": COMPILER})
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ({"python3": PYTHON}, ["C++20", "apt install g++ ", "dnf install gcc-c++ "]),
        ({"python3": PYTHON, "g++": "exit 1"}, ["C++20", "apt install g++ "]),
        ({"python3": python_without("Python.h"), "g++": COMPILER}, ["Python.h", "python3-dev", "python3-devel"]),
        ({"python3": python_without("ensurepip"), "g++": COMPILER}, ["venv", "apt install python3-venv"]),
        ({"g++": COMPILER}, ["Python 3.11", "python3-venv python3-dev"]),
        ({"python3": python_without("Python.h")}, ["Python.h", "C++20", "python3-dev g++", "python3-devel gcc-c++"]),
        ({"python3": python_without("3, 11"), "g++": COMPILER}, ["needs Python 3.11 or newer", "make PYTHON="]),
    ],
)
def test_what_is_missing_is_one_line_with_the_packages(
    tmp_path: Path, programs: dict[str, str], words: list[str]
) -> None:
    process = preflight(tmp_path, **programs)
    assert process.returncode == 1
    assert len(process.stderr.splitlines()) == 1
    for word in words:
        assert word in process.stderr
