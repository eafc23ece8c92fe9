"""Sessions that outlive processes: killed engines and servers, files that come and go, stores that cannot be used."""

import os
import resource
import signal
import sys
import threading
from pathlib import Path

import httpx
import pytest
from tests.api.conftest import quiet
from tests.api.test_sessions import GREEDY, Json, events_of, ids, open_session, turn
from tests.support.server import GUARD_S, Server, eventually, serving, write_tiny_gguf

from sojourn.sessions.archive import join

pytestmark = pytest.mark.http_scenario
SIZE = ("--context", "4096", "--pool-tokens", "16384", "--chunk", "64")
MIB_OF_FILES = """
import resource
from sojourn.app.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))
main()
"""


def kept_in(folder: Path, *more: str) -> tuple[str, ...]:
    return (*SIZE, "--data-dir", str(folder), *more)


def kill_all(server: Server) -> None:
    """No process of it has time for anything."""
    for pid in (server.process.pid, server.pid_of("engine"), server.pid_of("front")):
        os.kill(pid, signal.SIGKILL)
    server.process.wait(GUARD_S)


def shown(server: Server, session: str) -> Json:
    response = server.http.get(f"/v1/sessions/{session}")
    assert response.status_code == 200, response.text
    return dict(response.json())


def the_store(folder: Path) -> Path:
    (path,) = folder.glob("*/sessions.db")
    return path


# -- the engine dies


def test_b22_turns_in_flight_answer_503_and_every_session_continues(models: Path) -> None:
    with serving(models, *SIZE, "--durability", "token") as server:
        undisturbed, session, other, idle = (open_session(server) for _ in range(4))
        for name in (undisturbed, session, other, idle):
            first = turn(server, name, text="Hello", max_tokens=9, turn=0)
        expected = turn(server, undisturbed, text="And now?", max_tokens=40)
        answers: list[httpx.Response] = []
        long = {**GREEDY, "text": "And now?", "max_tokens": 3000, "turn": 1}

        def plain() -> None:
            answers.append(server.http.post(f"/v1/sessions/{session}/turns", json=long))

        waiting = threading.Thread(target=plain)
        waiting.start()
        while shown(server, session)["state"] != "running":
            pass
        said: list[int] = []
        with server.http.stream("POST", f"/v1/sessions/{other}/turns", json={**long, "stream": True}) as response:
            events = events_of(response)
            while len(said) < 20:
                said += next(events).get("token_ids", [])
            server.kill("engine")
            last = [*events][-1]
        assert (last["type"], last["error"]["code"]) == ("error", "engine_unavailable")
        waiting.join(GUARD_S)
        assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "engine_unavailable")
        assert int(answers[0].headers["retry-after"]) >= 1

        server.wait_until_ready()
        assert len(server.http.get("/v1/sessions").json()["data"]) == 4
        killed = shown(server, other)["killed"]
        assert killed["token_ids"][: len(said)] == said, "what was sent was kept before"
        for name in (session, other, idle):
            assert (shown(server, name)["turns"], shown(server, name)["state"]) == (1, "idle")
            again = turn(server, name, text="Hello", max_tokens=9, turn=0)
            assert (again["replayed"], again["token_ids"]) == (True, first["token_ids"])
            next_one = turn(server, name, text="And now?", max_tokens=40, turn=1)
            assert next_one["token_ids"] == expected["token_ids"]
        assert shown(server, other)["killed"] is None
        quiet(server)


def test_an_engine_whose_store_cannot_be_read_for_a_moment_is_started_until_it_can(
    models: Path, tmp_path: Path
) -> None:
    """At the first start it would end the server (`check_is_refused`)."""
    with serving(models, *kept_in(tmp_path)) as server:
        session = open_session(server)
        turn(server, session, text="One", max_tokens=3)
        folder = the_store(tmp_path).parent
        folder.rename(tmp_path / "aside")  # the engine that runs has its files open
        folder.mkdir()
        (folder / "sessions.db").write_bytes(b"no database" * 1000)
        server.kill("engine")
        server.lines_with("the engine ended with code 2; it is started again")
        folder.rename(tmp_path / "no database")
        (tmp_path / "aside").rename(folder)
        server.wait_until_ready()
        assert shown(server, session)["turns"] == 1
        quiet(server)


def test_a_new_server_knows_what_the_old_one_was_told(models: Path, tmp_path: Path) -> None:
    """Opened, rewound, forked, appended, interrupted, with a timeout, closed: all of it, and its words."""
    with serving(models, *kept_in(tmp_path)) as server:
        assert server.lines_with("durability turn, 0 sessions are back from", str(tmp_path))
        undisturbed, session, gone = (open_session(server, timeout=500.0) for _ in range(3))
        for name in (undisturbed, session):
            turn(server, name, text="One", max_tokens=7)
            turn(server, name, text="Two", max_tokens=7)
            server.http.post(f"/v1/sessions/{name}/append", json={"text": "Thr"})
        fork = server.http.post(f"/v1/sessions/{session}/fork", json={"turns": 1}).json()["id"]
        server.http.post(f"/v1/sessions/{fork}/rewind", json={"length": 5})
        server.http.delete(f"/v1/sessions/{gone}")
        expected = turn(server, undisturbed, text="ee", max_tokens=9)
        assert server.stop() == 0
    with serving(models, *kept_in(tmp_path)) as server:
        assert server.lines_with("3 sessions are back from")
        assert server.http.get(f"/v1/sessions/{gone}").status_code == 404
        assert [shown(server, fork)[field] for field in ("tokens", "turns", "timeout")] == [5, 1, 500.0]
        third = turn(server, session, text="ee", max_tokens=9)
        assert (third["token_ids"], third["text"]) == (expected["token_ids"], expected["text"])
        assert third["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
        quiet(server)


# -- files


def exported(server: Server, session: str) -> bytes:
    response = server.http.get(f"/v1/sessions/{session}/export")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    return response.content


def taken_in(server: Server, data: bytes, name: str) -> httpx.Response:
    return server.http.post("/v1/sessions/import", params={"session_id": name}, content=data)


def test_b16_saved_erased_restarted_restored(models: Path, tmp_path: Path) -> None:
    options = kept_in(tmp_path / "data", "--disk-cache", str(tmp_path / "kv"))
    with serving(models, *options) as server:
        undisturbed, session = open_session(server), open_session(server)
        for name in (undisturbed, session):
            first = turn(server, name, text="One", max_tokens=30, turn=0)
            turn(server, name, text="Two", max_tokens=30, turn=1)
        expected = turn(server, undisturbed, text="Three", max_tokens=30)
        saved = exported(server, session)
        nothing = {"sessions": 0, "pages": 0}
        eventually(lambda: server.http.get("/v1/pools").json()["unwritten"] == nothing, "something is not written")
        assert server.http.delete(f"/v1/sessions/{session}").json()["deleted"] is True
        kill_all(server)
    with serving(models, *options) as server:
        assert taken_in(server, saved, undisturbed).status_code == 409
        restored = taken_in(server, saved, session)
        assert restored.status_code == 200, restored.text
        assert (restored.json()["turns"], restored.json()["tokens"]) == (2, shown(server, session)["tokens"])
        again = turn(server, session, text="One", max_tokens=30, turn=0)
        assert (again["replayed"], again["text"]) == (True, first["text"])
        third = turn(server, session, text="Three", max_tokens=30, turn=2)
        assert third["token_ids"] == expected["token_ids"]
        assert third["cache"]["cached_tokens"] >= restored.json()["tokens"] - 1, "its KV was in files"
        assert third["cache"]["source"] == "disk"
        quiet(server)
        refusals_of_files(server, saved)


def refusals_of_files(server: Server, saved: bytes) -> None:
    """Cut and changed everywhere: 400, and nothing is opened."""
    middle = len(saved) // 2
    changed = [
        *(saved[:length] for length in (0, 1, 8, 15, 60, middle, len(saved) - 1)),
        *(saved[:at] + bytes([saved[at] ^ 1]) + saved[at + 1 :] for at in range(0, len(saved), 41)),
        saved + b"\0",
        b"{}",
    ]
    for data in changed:
        answer = taken_in(server, data, "other")
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] in ("invalid_file", "unknown_version")
    assert taken_in(server, join({b"HEAD": b" " * (9 << 20)}), "other").status_code == 413
    assert taken_in(server, saved, "a/b").status_code == 400
    assert server.http.get("/v1/sessions").json()["data"] == []


def test_a_file_of_another_model_is_refused(models: Path, tmp_path: Path) -> None:
    with serving(models, *SIZE) as server:
        session = open_session(server)
        turn(server, session, text="One", max_tokens=5)
        saved = exported(server, session)
    (tmp_path / "other").mkdir()
    other = write_tiny_gguf(tmp_path / "other", architecture="qwen2")
    with serving(models, "--context", "4096", model=other) as server:
        answer = taken_in(server, saved, "mine")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "foreign_model")
        assert "tiny-llama" in answer.json()["error"]["message"]
        quiet(server)


# -- stores that cannot be used


def check_is_refused(models: Path, folder: Path, sentence: str) -> None:
    with serving(models, *kept_in(folder), ready=False) as server:
        assert server.process.wait(GUARD_S) == 2
        assert sentence in server.stderr()
        assert "Traceback" not in server.stderr()


def test_a_second_server_may_not_have_the_same_store(models: Path, tmp_path: Path) -> None:
    with serving(models, *kept_in(tmp_path)) as server:
        session = open_session(server)
        check_is_refused(models, tmp_path, "another server uses it")
        turn(server, session, text="Still here", max_tokens=3)
        quiet(server)


def test_a_store_that_cannot_be_read_is_refused_with_a_sentence(models: Path, tmp_path: Path) -> None:
    """Nothing is served without it unless that is what was asked for. More such files are in `tests/app/test_keeping.py`."""
    with serving(models, *kept_in(tmp_path)) as server:
        turn(server, open_session(server), text="One", max_tokens=3)
        assert server.stop() == 0
    path = the_store(tmp_path)
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 20_000)
    check_is_refused(models, tmp_path, "damaged")
    with serving(models, *kept_in(tmp_path, "--durability", "none")) as server:
        assert server.lines_with("durability none")
        turn(server, open_session(server), text="One", max_tokens=3)


def test_a_disk_that_is_full_refuses_what_it_cannot_keep_and_nothing_else(models: Path, tmp_path: Path) -> None:
    """The limit on the size of files stands for the disk: what grows past it is refused by the system."""
    with serving(models, *SIZE) as server:  # the model is prepared before files have a limit
        assert server.stop() == 0
    command = (sys.executable, "-c", MIB_OF_FILES.format(size=300_000))
    with serving(models, *kept_in(tmp_path), command=command) as server:
        session = open_session(server)
        turns = 0
        while (answer := ask(server, session, turns)).status_code == 200:
            turns += 1
            assert turns < 1000
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert shown(server, session)["turns"] == turns
        refused = server.http.post("/v1/sessions")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert server.lines_with("the turn is undone, since it could not be stored")
        assert server.lines_with("refused, since it could not be kept")
        assert server.metric('sojourn_store_commits_total{result="failed"', least=2) >= 2
        assert server.metric("sojourn_store_sessions") == 1
        chat = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
        assert server.http.post("/v1/chat/completions", json=chat).status_code == 200
        assert server.http.get("/ready").status_code == 200
        resource.prlimit(server.pid_of("engine"), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert ask(server, session, turns).json()["replayed"] is False
        kill_all(server)
    with serving(models, *kept_in(tmp_path)) as server:
        assert shown(server, session)["turns"] == turns + 1
        quiet(server)


def ask(server: Server, session: str, number: int) -> httpx.Response:
    body = {**GREEDY, "token_ids": ids(2, number), "max_tokens": 2, "turn": number}
    return server.http.post(f"/v1/sessions/{session}/turns", json=body)
