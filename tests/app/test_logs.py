"""The log as JSON: every line an object, a turn's numbers as numbers."""

import json
import logging
import sys
from datetime import datetime
from pathlib import Path

import pytest
from tests.support.server import serving

from sojourn.app.logs import TEXT, JsonFormatter, log_progress


def entry_of(message: str, **attributes: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"msg": message, "name": "sojourn.turn", "levelname": "INFO", "created": 1.5, **attributes}
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry: dict[str, object] = json.loads(line)
    return entry


def test_a_record_is_an_object_in_a_line() -> None:
    base = {"time": "1970-01-01T00:00:01.500+00:00", "level": "info", "logger": "sojourn.turn"}
    assert entry_of("two\nlines") == base | {"message": "two\nlines"}
    assert entry_of("a=1", fields={"a": 1, "b": None}) == base | {"a": 1, "b": None}


def test_a_line_of_text_begins_with_its_time() -> None:
    line = TEXT.format(logging.makeLogRecord({"msg": "gone", "name": "sojourn.turn", "levelname": "ERROR"}))
    told, rest = line.split(" ", 1)
    assert rest == "ERROR sojourn.turn: gone"
    assert datetime.fromisoformat(told).tzinfo is not None


def test_an_exception_is_told() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        entry = entry_of("failed", exc_info=sys.exc_info())
    assert "ValueError: no" in str(entry["traceback"])


def test_progress_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), log_progress() as progress:
        progress.start(4 << 20, "reading")
        progress.advance(2 << 20)
    assert caplog.messages == ["reading (4 MiB)", "reading: 50 %"]


@pytest.mark.http_scenario
def test_everything_a_server_logs_is_json(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json", "--metrics-compat", "vllm", "--context", "512") as server:
        session = server.http.post("/v1/sessions").json()["id"]
        body = {"token_ids": [5, 6, 7], "max_tokens": 3, "temperature": 0.0}
        assert server.http.post(f"/v1/sessions/{session}/turns", json=body).status_code == 200
        assert 'vllm:generation_tokens_total{model_name="tiny-llama"} 3.0' in server.http.get("/metrics").text
        server.stop()
        entries = [json.loads(line) for line in server.stderr().splitlines()]
    assert {"sojourn.supervisor", "sojourn.engine", "sojourn.load", "sojourn.turn"} <= {
        one["logger"] for one in entries
    }
    (turn,) = [one for one in entries if one["logger"] == "sojourn.turn"]
    assert (turn["session"], turn["tenant"], turn["finish"]) == (session, "", "length")
    assert (turn["prompt"], turn["cached"], turn["completion"], turn["miss"]) == (3, 0, 3, None)
    assert turn["queue_ms"] <= turn["ttft_ms"] <= turn["total_ms"]
