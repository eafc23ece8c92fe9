"""A process whose parent is gone ends: at once if it can, and in the end anyhow."""

import signal
import subprocess
import sys

import pytest

GUARD_S = 60.0
CHILD = """
import signal, threading
from sojourn.app.follow import follow_parent
if {is_deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
follow_parent({patience_s})
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("is_deaf", "patience_s", "ended_by"), [(False, 1000, signal.SIGTERM), (True, 0, signal.SIGKILL)]
)
def test_a_process_ends_when_its_stdin_closes(is_deaf: bool, patience_s: int, ended_by: signal.Signals) -> None:
    code = CHILD.format(is_deaf=is_deaf, patience_s=patience_s)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(GUARD_S) == -ended_by
