"""The folder of a running server's sockets. A killed server leaves its own behind, and the next one to start sweeps it away.

Whoever lives holds a lock on its folder, which the system takes back when it dies. Knows no server and no socket.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "sojourn-run-"


@contextmanager
def run_folder(base: Path) -> Iterator[Path]:
    """A new folder in `base`, for this user only, that is gone afterwards."""
    sweep(base)
    folder, lock = _make(base)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep(base: Path) -> None:
    """Remove what nobody holds any more of this user's. What cannot be removed stays."""
    for folder in base.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another user's, or not ours to name, or just gone
            continue
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _make(base: Path) -> tuple[Path, int]:
    """Made and locked. Another server that starts may have swept it in between: then once more."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink > 0 and folder.exists():
            return folder, lock
        os.close(lock)
