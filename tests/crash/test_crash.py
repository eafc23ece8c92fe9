"""Five kills of a server under load; `make crash` does two hundred."""

from pathlib import Path
from random import Random

import pytest

from tests.crash.run import Crash

pytestmark = pytest.mark.http_scenario


def test_kill_9_five_times_under_load_loses_nothing_that_was_told(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    crash = Crash(tmp_path / "models", tmp_path / "data", Random(5))
    crash.run(5)
    assert crash.kills == {"engine": 2, "front": 2, "all": 1}
    assert crash.answers >= 5
