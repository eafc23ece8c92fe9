"""Bounds of one tenant and of one session, over HTTP: each refusal names what is bounded and by how much."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.api.conftest import quiet
from tests.api.native import calls as native
from tests.api.test_life import sample, until
from tests.api.test_sessions import GREEDY, Json, events_of, ids, open_session, refused, turn
from tests.support.server import Server, eventually, serving

pytestmark = pytest.mark.http_scenario


@pytest.fixture(scope="module")
def bounded(models: Path) -> Iterator[Server]:
    with serving(models, *limits("tenant_sessions=3", "session_tokens=64")) as server:
        yield server


@pytest.fixture(scope="module")
def busy(models: Path) -> Iterator[Server]:
    """One batch place."""
    size = ("--context", "8192", "--max-running", "1")
    with serving(models, *size, *limits("tenant_turns=3", "tenant_waiting=1")) as server:
        yield server


def limits(*bounds: str) -> list[str]:
    return [part for bound in bounds for part in ("--limit", bound)]


@pytest.fixture
def server(bounded: Server) -> Iterator[Server]:
    yield bounded
    quiet(bounded)


@pytest.fixture
def longer(busy: Server) -> Iterator[Server]:
    yield busy
    quiet(busy)


def told(response: httpx.Response, status: int) -> tuple[str | None, str | None, str]:
    assert response.status_code == status, response.text
    if status == 429:
        assert 1 <= int(response.headers["retry-after"]) <= 60
    error = response.json()["error"]
    return error["param"], error["code"], error["message"]


def test_sessions_of_one_tenant(server: Server) -> None:
    sessions = [open_session(server) for _ in range(3)]
    param, code, message = told(server.http.post("/v1/sessions", json={}), 429)
    assert (param, code) == ("session_id", "too_many_sessions")
    assert message == "3 sessions are open, the bound of one tenant is 3"
    param, code, _ = told(server.http.post(f"/v1/sessions/{sessions[0]}/fork", json={}), 429)
    assert (param, code) == ("session_id", "too_many_sessions")
    server.http.delete(f"/v1/sessions/{sessions[0]}").raise_for_status()
    open_session(server)


def test_trees_of_the_native_dialect_are_sessions_like_others(server: Server) -> None:
    trees = [native.open_session(server, streaming=False) for _ in range(2)]
    session = open_session(server)
    body = {"capacity_of_str_len": 1000}
    message = "3 sessions are open, the bound of one tenant is 3"
    assert told(server.http.post("/v1/sessions", json={}), 429)[2] == message
    assert told(server.http.post(f"/v1/sessions/{session}/fork", json={}), 429)[2] == message
    file = server.http.get(f"/v1/sessions/{session}/export").content
    assert told(server.http.post("/v1/sessions/import", content=file), 429)[2] == message
    for streaming in (False, True):
        refused_one = server.http.post("/open_session", json={**body, "streaming": streaming})
        assert refused_one.status_code == 503, "the dialect has no 429"
        assert message in refused_one.text
        assert int(refused_one.headers["retry-after"]) >= 1
    native.close_session(server, trees.pop())
    trees.append(native.open_session(server, streaming=False))
    server.http.delete(f"/v1/sessions/{session}").raise_for_status()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server.http.post, "/open_session", json={**body, "streaming": False}) for _ in range(4)]
        opened = [answer.result().json() for answer in answers if answer.result().status_code == 200]
    assert len(opened) == 1, "one place was left"
    for name in (*trees, *opened):
        native.close_session(server, name)


def test_tokens_of_one_session(server: Server) -> None:
    session = open_session(server)
    assert turn(server, session, token_ids=ids(40), max_tokens=1000)["usage"]["total_tokens"] == 64
    error = refused(server, session, 400, token_ids=ids(3), max_tokens=1)
    assert error["code"] == "session_tokens_exceeded"
    assert error["param"] == "token_ids"
    assert "67 tokens" in error["message"]
    assert "64" in error["message"]


LONG: Json = {**GREEDY, "token_ids": ids(5), "max_tokens": 8000, "stream": True, "ignore_eos": True}


def test_turns_of_one_tenant_that_wait(longer: Server) -> None:
    """One batch place: the second turn waits for it, and the third is one too many."""
    running, waiting, refused_one = (open_session(longer) for _ in range(3))
    with longer.http.stream("POST", f"/v1/sessions/{running}/turns", json=LONG) as response:
        events = events_of(response)  # kept: who lets it go, goes away
        next(events)
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(turn, longer, waiting, token_ids=ids(6), max_tokens=1)
            until(longer, "sojourn_requests_waiting", 1, reason="batch_full")
            body = {**GREEDY, "token_ids": ids(6), "max_tokens": 1}
            answer = longer.http.post(f"/v1/sessions/{refused_one}/turns", json=body)
            param, code, message = told(answer, 429)
            longer.http.post(f"/v1/sessions/{running}/interrupt", json={"keep": 0}).raise_for_status()
            assert second.result()["usage"]["completion_tokens"] == 1
    assert (param, code) == ("tenant", "too_many_waiting")
    assert message == "1 turns of this tenant wait already, the bound is 1"
    assert turn(longer, refused_one, token_ids=ids(6), max_tokens=1)["turn"] == 0


def test_a_replacement_in_a_tree_that_is_refused_replaces_nothing(longer: Server) -> None:
    tree = native.open_session(longer, streaming=False)
    root = native.turn(longer, tree, ids(6), 2, rid="root")
    child = native.generate(longer, 2, input_ids=ids(4), rid="child", session_params={"id": tree, "rid": "root"})
    running, waiting = (open_session(longer) for _ in range(2))
    with longer.http.stream("POST", f"/v1/sessions/{running}/turns", json=LONG) as response:
        events = events_of(response)  # kept: who lets it go, goes away
        next(events)
        eventually(lambda: sample(longer, "sojourn_requests_waiting", reason="batch_full") == 0, "an earlier one waits")
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(turn, longer, waiting, token_ids=ids(6), max_tokens=1)
            until(longer, "sojourn_requests_waiting", 1, reason="batch_full")
            asked = {"id": tree, "rid": "root", "replace": True}
            answer = native.post(longer, 2, input_ids=ids(3), rid="child", session_params=asked)
            longer.http.post(f"/v1/sessions/{running}/interrupt", json={"keep": 0}).raise_for_status()
            assert second.result()["usage"]["completion_tokens"] == 1
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_waiting")
    on = native.generate(longer, 1, input_ids=ids(3), session_params={"id": tree, "rid": "child"})
    said = len(root["output_ids"]) + len(child["output_ids"])
    assert on["meta_info"]["prompt_tokens"] == 6 + 4 + said + 3
    native.close_session(longer, tree)


def test_turns_of_one_tenant_that_run_or_wait_in_line(longer: Server) -> None:
    session = open_session(longer)
    with longer.http.stream("POST", f"/v1/sessions/{session}/turns", json=LONG) as response:
        events = events_of(response)  # kept: who lets it go, goes away
        next(events)
        with ThreadPoolExecutor(2) as pool:
            lined = [pool.submit(turn, longer, session, token_ids=ids(6), max_tokens=1, wait=True) for _ in range(2)]
            until(longer, "sojourn_requests_waiting", 2, reason="session_busy")
            answer = longer.http.post("/v1/sessions/nobody/turns", json=GREEDY)
            param, code, message = told(answer, 429)
            longer.http.post(f"/v1/sessions/{session}/interrupt", json={"keep": 0}).raise_for_status()
            assert [one.result()["usage"]["completion_tokens"] for one in lined] == [1, 1]
    assert (param, code) == ("tenant", "too_many_requests")
    assert message == "3 requests of this tenant are running or waiting, the bound is 3"
