"""Folders that appear whole or not at all: a lock, a scratch folder inside it, and a rename.

One process at a time fills a directory, so any scratch folder it finds there is a dead process's and is swept. A file
that was mapped stays readable to its readers after its folder is replaced. Knows nothing of what the folders hold.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sojourn.models.progress import Progress

_SCRATCH = ".scratch-"


@contextmanager
def exclusive_scratch(directory: Path, progress: Progress) -> Iterator[Path]:
    """Hold the directory's lock and lend an empty scratch folder in it, removed at the end if it is still there."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.message(f"waiting for another process that is writing to {directory}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for orphan in directory.glob(f"{_SCRATCH}*"):
            shutil.rmtree(orphan, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=directory))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def publish(scratch: Path, target: Path) -> None:
    """Rename the filled scratch folder to `target`, replacing what was there. Call with the lock held."""
    for path in scratch.iterdir():
        _sync(path)
    _sync(scratch)
    scratch.chmod(0o755)  # mkdtemp makes private folders; a cache may be shared
    if target.exists():
        target.rename(scratch.with_name(f"{scratch.name}-replaced"))
    scratch.rename(target)
    _sync(target.parent)
    shutil.rmtree(scratch.with_name(f"{scratch.name}-replaced"), ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
