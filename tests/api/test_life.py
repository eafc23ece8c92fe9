"""A server's life: who may ask, what it says of itself, how it drains, and that each process survives the other's death."""

import hashlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.api.conftest import quiet
from tests.api.test_sessions import GREEDY, Json, events_of, ids, open_session, turn
from tests.support.server import GUARD_S, Server, eventually, serving

from sojourn.client.sync import Client

pytestmark = pytest.mark.http_scenario
SIZE = ("--context", "4096", "--pool-tokens", "16384")


def sample(server: Server, name: str, **labels: str) -> float:
    """The value of a metric; 0 if it has no sample with these labels."""
    text = server.http.get("/metrics").text
    total = 0.0
    for line in text.splitlines():
        key, _, value = line.rpartition(" ")
        if key.partition("{")[0] == name and all(f'{label}="{want}"' in key for label, want in labels.items()):
            total += float(value)
    return total


def until(server: Server, name: str, least: float, **labels: str) -> float:
    seen: list[float] = []

    def is_there() -> bool:
        seen.append(sample(server, name, **labels))
        return seen[-1] >= least

    eventually(is_there, f"{name} {labels} stayed below {least}")
    return seen[-1]


# -- disconnections


def test_b10_a_client_that_goes_away_undoes_its_turn(server: Server) -> None:
    session = open_session(server)
    first = turn(server, session, token_ids=ids(8), max_tokens=4)
    said = first["usage"]["total_tokens"]
    before = sample(server, "sojourn_requests_aborted_total", reason="disconnect")
    for number in range(20):
        body = {**GREEDY, "token_ids": ids(6, number), "max_tokens": 3000, "stream": True, "wait": True}
        with server.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
            events = events_of(response)
            for _ in range(4):
                next(events)
    until(server, "sojourn_requests_aborted_total", before + 20, reason="disconnect")
    after = turn(server, session, token_ids=ids(5), max_tokens=4, wait=True)
    assert after["usage"]["prompt_tokens"] == said + 5
    assert after["usage"]["cached_tokens"] >= said - 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnection_in_prefill_undoes_the_turn_too(server: Server, stream: bool) -> None:
    session = open_session(server)
    before = sample(server, "sojourn_requests_aborted_total", reason="disconnect")
    steps = sample(server, "sojourn_steps_total")
    body = json.dumps({**GREEDY, "token_ids": ids(2000), "max_tokens": 2000, "stream": stream}).encode()
    head = f"POST /v1/sessions/{session}/turns HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port or 0), GUARD_S) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        while server.http.get(f"/v1/sessions/{session}").json()["state"] != "running":
            pass
    until(server, "sojourn_requests_aborted_total", before + 1, reason="disconnect")
    assert server.http.get(f"/v1/sessions/{session}").json()["tokens"] == 0
    assert sample(server, "sojourn_steps_total") - steps < 1000, "all of it would have been 2,032"
    assert '/turns",status="500"' not in server.http.get("/metrics").text, "nobody here has made a mistake"


# -- request ids, bodies, routes


def test_request_ids_are_exact_and_not_given_twice(server: Server) -> None:
    session = open_session(server)
    body = {**GREEDY, "text": "Long", "max_tokens": 1000, "stream": True}
    named = {"x-request-id": "one"}
    with server.http.stream("POST", f"/v1/sessions/{session}/turns", json=body, headers=named) as response:
        assert response.headers["x-request-id"] == "one"
        events = events_of(response)
        next(events)
        refused = server.http.get("/v1/sessions", headers=named)
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "duplicate_request"
        assert server.http.get("/v1/sessions", headers={"x-request-id": "on"}).status_code == 200
    assert server.http.get("/v1/sessions", headers={"x-request-id": "a b"}).status_code == 400
    assert len(server.http.get("/v1/sessions").headers["x-request-id"]) == 32


def test_bodies_have_a_bound(server: Server) -> None:
    session = open_session(server)
    large = b" " * (9 << 20)
    path = f"/v1/sessions/{session}/turns"
    headers = {"content-type": "application/json"}
    assert server.http.post(path, content=large, headers=headers).status_code == 413
    in_parts = server.http.post(path, content=iter([large[: 5 << 20]] * 2), headers=headers)
    assert in_parts.status_code == 413
    assert in_parts.json()["error"]["code"] == "body_too_large"
    broken = server.http.post(path, content=b'{"text": ', headers=headers)
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
    assert server.http.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert server.http.put("/v1/sessions").status_code == 405


def test_metrics_count_what_happened(server: Server) -> None:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    before = [sample(server, f"sojourn_{name}_total") for name in names]
    session = open_session(server)
    for number in range(2):
        turn(server, session, token_ids=ids(10, number), max_tokens=5)
    after = [sample(server, f"sojourn_{name}_total") for name in names]
    gained = [new - old for new, old in zip(after, before, strict=True)]
    assert gained[:2] == [10 + 25, 10]
    assert gained[2] in (14, 15)
    assert sample(server, "sojourn_ready") == 1
    assert sample(server, "sojourn_kv_pages_leaked") == 0
    assert "mine" not in server.http.get("/metrics").text
    assert session not in server.http.get("/metrics").text
    line = server.lines_with("cached=", f"session={session}", count=2)[-1]
    assert "prompt=25" in line
    assert "finish=length" in line


# -- keys


def test_keys_have_roles_and_tenants_see_only_their_own(models: Path, tmp_path: Path) -> None:
    roles = {"boss": "admin all", "ann": "user acme", "bob": "user beta", "eye": "metrics ops"}
    lines = [f"{hashlib.sha256(key.encode()).hexdigest()} {role}  # {key}" for key, role in roles.items()]
    key_file = tmp_path / "keys"
    key_file.write_text("# keys\n" + "\n".join(lines) + "\n")

    def bearer(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    with serving(models, "--api-key-file", str(key_file)) as server:
        http = server.http
        assert http.get("/ready").status_code == 200
        for headers in ({}, bearer("nobody"), {"authorization": "Basic ann"}):
            refused = http.get("/v1/sessions", headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["type"] == "authentication_error"
        assert http.get("/metrics", headers=bearer("eye")).status_code == 200
        assert http.get("/v1/sessions", headers=bearer("eye")).status_code == 403
        assert http.get("/v1/pools", headers=bearer("ann")).status_code == 403
        assert http.get("/v1/pools", headers=bearer("boss")).status_code == 200
        session = http.post("/v1/sessions", headers=bearer("ann")).json()["id"]
        body = {**GREEDY, "token_ids": ids(40), "max_tokens": 3}
        assert http.post(f"/v1/sessions/{session}/turns", json=body, headers=bearer("ann")).status_code == 200
        for path in ("", "/turns"):
            method = "POST" if path else "GET"
            answer = http.request(
                method, f"/v1/sessions/{session}{path}", json=body if path else None, headers=bearer("bob")
            )
            assert answer.status_code == 404, path
        assert http.get("/v1/sessions", headers=bearer("bob")).json()["data"] == []
        assert len(http.get("/v1/sessions", headers=bearer("boss")).json()["data"]) == 1
        other = http.post("/v1/sessions", headers=bearer("bob")).json()["id"]
        cold = http.post(f"/v1/sessions/{other}/turns", json=body, headers=bearer("bob")).json()
        assert cold["usage"]["cached_tokens"] == 0, "KV is not shared between tenants"
        check_that_ids_are_a_tenants_own(http, bearer)
        assert server.lines_with("tenant=acme")
    log = server.stderr()
    for key in roles:
        assert f"Bearer {key}" not in log


def check_that_ids_are_a_tenants_own(http: httpx.Client, bearer: Callable[[str], dict[str, str]]) -> None:
    """Two tenants call their session the same; each goes its own way, and an administrator says whose is meant."""
    named = {"session_id": "same"}
    for key, tenant in (("ann", "acme"), ("bob", "beta")):
        opened = http.post("/v1/sessions", json=named, headers=bearer(key))
        assert (opened.status_code, opened.json()["tenant"]) == (200, tenant)
        assert http.post("/v1/sessions", json=named, headers=bearer(key)).status_code == 409
    for key, count in (("ann", 10), ("bob", 20)):
        body = {**GREEDY, "token_ids": ids(count), "max_tokens": 2}
        said = http.post("/v1/sessions/same/turns", json=body, headers=bearer(key)).json()
        assert said["usage"]["prompt_tokens"] == count
    assert http.get("/v1/sessions/same", headers=bearer("bob")).json()["tokens"] == 22
    assert http.get("/v1/sessions/same?tenant=beta", headers=bearer("ann")).status_code == 403
    assert http.get("/v1/sessions/same", headers=bearer("boss")).status_code == 404
    listed = http.get("/v1/sessions", headers=bearer("boss")).json()["data"]
    assert sorted(one["tenant"] for one in listed if one["id"] == "same") == ["acme", "beta"]
    with Client(http=httpx.Client(base_url=http.base_url, headers=bearer("boss"))) as client:
        theirs = client.session("same", tenant="acme")
        assert (theirs.info().tenant, theirs.info().tokens) == ("acme", 12)
        assert theirs.rewind(length=5).tokens == 5
        assert (client.session("same", tenant="beta").info().tokens, theirs.info().tokens) == (22, 5)
        assert theirs.close().deferred is False
    assert http.get("/v1/sessions/same", headers=bearer("ann")).status_code == 404
    assert http.get("/v1/sessions/same", headers=bearer("bob")).json()["turns"] == 1
    for path in ("/open_session", "/close_session"):
        for key in ("ann", "bob"):
            answer = http.post(path, json={"session_id": "tree", "capacity_of_str_len": 10}, headers=bearer(key))
            assert answer.status_code == 200, answer.text


def test_a_wrong_key_file_and_an_open_door_are_refused(models: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text("secret user acme\n")
    with serving(models, "--api-key-file", str(key_file), ready=False) as server:
        assert server.process.wait(GUARD_S) == 2
        assert "line 1 of the key file" in server.stderr()
        assert "secret" not in server.stderr()


# -- drain


def test_sigterm_lets_running_turns_finish_and_takes_no_new_ones(models: Path) -> None:
    with serving(models, "--context", "8192", "--pool-tokens", "16384") as server:
        session, other = open_session(server), open_session(server)
        body = {
            **GREEDY,
            "text": "Long",
            "max_tokens": 8000,
            "stream": True,
        }  # ended below: how fast it is, is not asked
        with server.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
            events = events_of(response)
            next(events)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: server.http.get("/ready").status_code == 503, "still ready")
            refused = server.http.post(f"/v1/sessions/{other}/turns", json={"text": "Now?"})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "draining"
            assert server.http.post("/v1/sessions").status_code == 503
            assert server.http.get("/live").status_code == 200
            assert server.http.post(f"/v1/sessions/{session}/interrupt").json()["interrupted"] is True
            last = list(events)[-1]
        assert (last["type"], last["finish_reason"]) == ("turn.ended", "interrupt")
        assert server.process.wait(GUARD_S) == 0


def test_a_second_sigterm_ends_at_once(models: Path) -> None:
    with serving(models, *SIZE) as server:
        session = open_session(server)
        body = {**GREEDY, "text": "Long", "max_tokens": 4000, "stream": True}
        with server.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
            events = events_of(response)
            next(events)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: server.http.get("/ready").status_code == 503, "still ready")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(GUARD_S) == 1


def test_a_turn_that_outlasts_the_shutdown_timeout_is_told_so(models: Path) -> None:
    with serving(models, "--context", "8192", "--pool-tokens", "16384", "--shutdown-timeout", "0.2") as server:
        session, other = open_session(server), open_session(server)
        body = {**GREEDY, "text": "Long", "max_tokens": 8000}
        answers: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: answers.append(server.http.post(f"/v1/sessions/{other}/turns", json=body))
        )
        waiting.start()
        with server.http.stream("POST", f"/v1/sessions/{session}/turns", json={**body, "stream": True}) as response:
            events = events_of(response)
            next(events)
            while server.http.get(f"/v1/sessions/{other}").json()["state"] != "running":
                assert not answers
            server.process.send_signal(signal.SIGTERM)
            last = list(events)[-1]
        waiting.join(GUARD_S)
        assert (last["type"], last["error"]["code"]) == ("error", "engine_unavailable")
        (answer,) = answers
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
        assert "shut down" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1
        assert server.process.wait(GUARD_S) == 0
        server.close()
        assert "Traceback" not in server.stderr()
        assert len(server.lines_with("finish=engine")) == 2


# -- crashes


def test_a_dead_engine_answers_503_and_is_started_again_without_its_sessions_if_nothing_is_kept(models: Path) -> None:
    with serving(models, *SIZE, "--durability", "none") as server:
        session = open_session(server)
        answers: list[httpx.Response] = []

        def plain() -> None:
            answers.append(
                server.http.post(f"/v1/sessions/{session}/turns", json={**GREEDY, "text": "Long", "max_tokens": 4000})
            )

        waiting = threading.Thread(target=plain)
        waiting.start()
        other = open_session(server)
        body = {**GREEDY, "text": "Long", "max_tokens": 4000, "stream": True}
        with server.http.stream("POST", f"/v1/sessions/{other}/turns", json=body) as response:
            events = events_of(response)
            next(events)
            server.kill("engine")
            last = list(events)[-1]
        assert last["type"] == "error"
        assert last["error"]["code"] == "engine_unavailable"
        waiting.join(GUARD_S)
        assert len(server.lines_with("finish=engine", count=2)) == 2
        assert answers[0].status_code == 503
        assert int(answers[0].headers["retry-after"]) >= 1
        assert answers[0].json()["error"]["code"] == "engine_unavailable"
        assert server.http.get("/live").status_code == 200
        server.wait_until_ready()
        gone = server.http.post(f"/v1/sessions/{session}/turns", json={"text": "Still there?"})
        assert gone.status_code == 404
        assert turn(server, open_session(server), text="Hello", max_tokens=3)["finish_reason"] == "length"
        quiet(server)


def test_a_dead_front_is_started_again_its_turns_undone_and_its_sessions_kept(models: Path) -> None:
    with serving(models, *SIZE) as server:
        session, running = open_session(server), open_session(server)
        words = [turn(server, session, text=word, max_tokens=6) for word in ("One", "Two")]
        undisturbed = open_session(server)
        for word in ("One", "Two"):
            turn(server, undisturbed, text=word, max_tokens=6)
        expected: Json = turn(server, undisturbed, text="Three", max_tokens=6)
        body = {**GREEDY, "text": "Long", "max_tokens": 4000, "stream": True}
        stream = server.http.stream("POST", f"/v1/sessions/{running}/turns", json=body)
        with pytest.raises(httpx.TransportError), stream as response:
            events = events_of(response)
            next(events)
            server.kill("front")
            for _ in events:
                pass
        server.http.close()
        server.http = httpx.Client(base_url=server.url, timeout=GUARD_S)
        server.wait_until_ready()
        shown = server.http.get(f"/v1/sessions/{running}").json()
        assert (shown["state"], shown["tokens"]) == ("idle", 0)
        third = turn(server, session, text="Three", max_tokens=6)
        assert third["token_ids"] == expected["token_ids"], "what was said is read from the engine's transcript"
        assert third["usage"]["cached_tokens"] >= words[1]["usage"]["total_tokens"] - 1
        assert turn(server, session, text="Two", turn=1, max_tokens=6)["text"] == words[1]["text"]
        quiet(server)


def test_a_broken_law_leaves_its_report_and_the_engine_is_started_again(models: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.support.broken_server")
    with serving(models, *SIZE, "--report-dir", str(tmp_path), command=command) as server:
        broken = server.pid_of("engine")
        session = open_session(server)
        lost = server.http.post(f"/v1/sessions/{session}/turns", json={**GREEDY, "text": "Hello", "max_tokens": 3})
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "engine_unavailable")
        server.wait_until_ready()
        (report,) = tmp_path.iterdir()
        assert report.name == f"sojourn-report-{broken}.txt"
        server.lines_with("the engine ended with code 70; it is started again")  # the last that is looked for
        for text in (report.read_text(), server.stderr()):
            assert "page 7 has two owners" in text
            assert "pool FULL" in text
            assert "requests:" in text
        assert sample(server, "sojourn_engine_starts_total") == 2
        assert turn(server, open_session(server), text="Hello", max_tokens=3)["finish_reason"] == "length"
        quiet(server)


def test_options_that_cannot_work_end_the_server_with_a_sentence(models: Path) -> None:
    with serving(models, "--context", "100000", "--pool-tokens", "100000", ready=False) as server:
        assert server.process.wait(GUARD_S) == 2
        assert "context 100,000 is over the model's own" in server.stderr()
        assert "Traceback" not in server.stderr()


def test_nobody_serves_when_the_supervisor_is_gone(models: Path) -> None:
    with serving(models, *SIZE) as server:
        server.process.kill()
        server.process.wait(GUARD_S)
        with pytest.raises(httpx.TransportError):
            for _ in range(100_000):
                httpx.get(f"{server.url}/live", timeout=GUARD_S)


# -- the document


def test_the_document_names_every_route_and_field(server: Server) -> None:
    document = server.http.get("/openapi.json").json()
    assert {"/v1/sessions/{session_id}/turns", "/v1/pools", "/live"} <= set(document["paths"])
    fields = document["components"]["schemas"]["TurnBody"]["properties"]
    assert {"text", "messages", "token_ids", "turn", "wait", "stream", "temperature"} <= set(fields)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
            assert "400" in operation["responses"], path
