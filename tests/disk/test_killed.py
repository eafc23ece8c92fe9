"""`kill -9` while pages are written: what is found afterwards is whole, and nothing unfinished stays."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sojourn.core.step import Pool
from sojourn.disk import files
from sojourn.disk.store import DiskStore

PAGE = 20_000
WRITER = f"""
import sys, time
from pathlib import Path
from sojourn.core.step import Pool
from sojourn.disk.store import DiskStore

store = DiskStore(Path(sys.argv[1]), 1 << 30, time.monotonic, print)
for number in range(10_000):
    store.put(Pool.FULL, number.to_bytes(24, "big"), bytes([number % 251]) * {PAGE}, wait_s=60.0)
    if number == int(sys.argv[2]):
        print("now", flush=True)
"""


@pytest.mark.parametrize("after", [1, 40, 333])
def test_a_process_killed_while_it_writes_leaves_whole_pages_or_none(tmp_path: Path, after: int) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(after)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
    warnings: list[str] = []
    store = DiskStore(tmp_path, 1 << 30, time.monotonic, warnings.append)
    assert not warnings
    assert not list(tmp_path.glob(f"{files.TEMPORARY}*"))
    found = [path for path in tmp_path.iterdir() if path.suffix == ".0"]
    assert store.statistics().num_pages == (len(found), 0)
    for path in found:
        name = bytes.fromhex(path.stem)
        reading = store.read(Pool.FULL, (name,), PAGE)
        assert store.drain(60.0)
        assert reading.rows().tobytes() == bytes([int.from_bytes(name, "big") % 251]) * PAGE
    assert store.statistics().corrupt == 0
    store.close()
