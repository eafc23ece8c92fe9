"""Five kills of a server under load; `make crash` does two hundred."""

import tempfile
from pathlib import Path

import pytest

from tests.crash.run import Crash

pytestmark = pytest.mark.http_scenario


def test_kill_9_five_times_under_load_loses_nothing_that_was_told() -> None:
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:  # a short name: the path of a socket has a bound
        crash = Crash(Path(folder), seed=5)
        crash.run(5)
    assert {"engine", "front", "all"} <= crash.kills.keys()
    assert crash.answers >= 5
    assert crash.done["turn"] > 0
    assert any(when.startswith("after SIGTERM") for when in crash.resumed)
    assert any(when.startswith("after kill -9, written ahead") for when in crash.resumed)
