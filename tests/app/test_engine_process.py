"""The engine's process at its end: what it leaves when a law was broken."""

from pathlib import Path

import pytest

from sojourn.app.engine_process import _leave_report
from sojourn.app.serve import made_report_dir
from sojourn.core.errors import ClientError
from sojourn.engine.thread import EngineStoppedError

STOPPED = EngineStoppedError("the engine has stopped", "page 7")


def test_a_report_that_cannot_be_written_is_said_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _leave_report(STOPPED, str(tmp_path / "gone"))
    first, second = caplog.messages
    assert first == "page 7"
    assert second.startswith("the report could not be written: ")


def test_a_report_lies_where_it_was_asked_for(tmp_path: Path) -> None:
    made_report_dir(tmp_path / "new" / "reports")
    _leave_report(STOPPED, str(tmp_path / "new" / "reports"))
    (path,) = (tmp_path / "new" / "reports").iterdir()
    assert path.read_text() == "page 7\n"


def test_a_place_that_can_have_no_reports_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClientError) as caught:
        made_report_dir(tmp_path / "file")
    assert caught.value.param == "report_dir"
