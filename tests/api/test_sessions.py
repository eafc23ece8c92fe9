"""The sessions API against a running server: what turns answer, what they reuse, what is refused."""

import json
import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

import httpx
import pytest
from tests.support.server import Server

pytestmark = pytest.mark.http_scenario
VOCAB = 258
Json: TypeAlias = dict[str, Any]
GREEDY = {"temperature": 0.0}


def ids(count: int, salt: int = 0) -> list[int]:
    return [(salt * 31 + index * 7 + 3) % (VOCAB - 1) for index in range(count)]


def open_session(server: Server, **body: object) -> str:
    response = server.http.post("/v1/sessions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


def turn(server: Server, session: str, **body: object) -> Json:
    response = server.http.post(f"/v1/sessions/{session}/turns", json={**GREEDY, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: Server, session: str, status: int, **body: object) -> Json:
    response = server.http.post(f"/v1/sessions/{session}/turns", json={**GREEDY, **body})
    assert response.status_code == status, response.text
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response.json()["error"]


def events_of(response: httpx.Response) -> Iterator[Json]:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def alone(server: Server, prompt: list[int], count: int) -> list[int]:
    """The greedy answer to `prompt` by a session of its own."""
    session = open_session(server)
    answer = turn(server, session, token_ids=prompt, max_tokens=count)
    server.http.delete(f"/v1/sessions/{session}")
    return list(answer["token_ids"])


# -- turns


def test_b2_a_turn_resumes_on_what_the_last_one_left(server: Server) -> None:
    session = open_session(server)
    said = 0
    history: list[int] = []
    for number in range(3):
        answer = turn(server, session, token_ids=ids(12, number), max_tokens=9)
        usage, cache = answer["usage"], answer["cache"]
        assert answer["turn"] == number
        assert usage["cached_tokens"] in ((0,) if number == 0 else (said, said - 1))
        assert usage["prompt_tokens"] == said + 12
        assert cache["source"] == ("none" if number == 0 else "session")
        assert cache["miss_reason"] is None
        history += ids(12, number)
        assert answer["token_ids"] == alone(server, history, 9)
        history += answer["token_ids"]
        said = usage["total_tokens"]
    shown = server.http.get(f"/v1/sessions/{session}").json()
    assert (shown["turns"], shown["tokens"], shown["state"]) == (3, said, "idle")
    assert sum(shown["pages"]["full"].values()) == -(-(said - 1) // 16)


def test_a_stream_says_the_same_as_an_answer(server: Server) -> None:
    first, second = open_session(server), open_session(server)
    whole = turn(server, first, text="Hello?", max_tokens=20)
    body = {**GREEDY, "text": "Hello?", "max_tokens": 20, "stream": True}
    with server.http.stream("POST", f"/v1/sessions/{second}/turns", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = list(events_of(response))
    deltas = [event for event in events if event["type"] == "delta"]
    assert events[0]["type"] == "turn.started"
    assert "".join(delta["text"] for delta in deltas) == whole["text"]
    assert [token for delta in deltas for token in delta["token_ids"]] == whole["token_ids"]
    assert events[-1]["type"] == "turn.ended"
    assert events[-1]["text"] == whole["text"]
    assert events[-1]["usage"]["completion_tokens"] == 20


def test_messages_are_templated_once_and_only_the_new_ones(server: Server) -> None:
    session = open_session(server)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One"}]
    first = turn(server, session, messages=messages, max_tokens=5)
    assert first["usage"]["prompt_tokens"] == len("[system:Be brief.][user:One][assistant:")
    second = turn(server, session, text="Two", max_tokens=5)
    assert second["cache"]["new_tokens"] in (len("][user:Two][assistant:"), len("][user:Two][assistant:") + 1)


def test_b13_each_turn_has_its_own_parameters(server: Server) -> None:
    session = open_session(server)
    for number, count in enumerate((4, 1, 9)):
        answer = turn(server, session, token_ids=ids(5, number), max_tokens=count, temperature=number / 2, seed=number)
        assert answer["usage"]["completion_tokens"] == count
        assert answer["finish_reason"] == "length"


def test_log_probabilities_come_with_tokens(server: Server) -> None:
    answer = turn(server, open_session(server), token_ids=ids(4), max_tokens=3, logprobs=2)
    assert [entry["token_id"] for entry in answer["logprobs"]] == answer["token_ids"]
    for entry in answer["logprobs"]:
        assert entry["top"][0] == [entry["token_id"], entry["logprob"]]
        assert len(entry["top"]) == 2


def test_stop_strings_end_a_turn_and_are_not_shown(server: Server) -> None:
    whole = turn(server, open_session(server), text="Stop?", max_tokens=40)
    text = whole["text"]
    stop = next(text[at : at + 2] for at in range(8, len(text)) if text.find(text[at : at + 2]) == at)
    session = open_session(server)
    answer = turn(server, session, text="Stop?", turn=0, max_tokens=40, stop=stop)
    assert answer["finish_reason"] == "stop"
    assert answer["stop"] == stop
    assert answer["text"] == text[: text.find(stop)]
    again = turn(server, session, text="Stop?", turn=0, max_tokens=40, stop=stop)
    assert (again["replayed"], again["stop"], again["text"]) == (True, stop, answer["text"])


# -- prefill ahead


def test_appends_leave_a_message_open_and_the_turn_closes_it(server: Server) -> None:
    ahead, at_once = open_session(server), open_session(server)
    for words in ("What is ", "the weather ", "in Paris"):
        answer = server.http.post(f"/v1/sessions/{ahead}/append", json={"text": words}).json()
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["finish_reason"] == "length"
    last = turn(server, ahead, text="?", max_tokens=8)
    whole = turn(server, at_once, text="What is the weather in Paris?", max_tokens=8)
    assert last["token_ids"] == whole["token_ids"]
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert last["cache"]["new_tokens"] <= len("?][assistant:") + 1
    assert last["turn"] == 3
    nothing = turn(server, ahead, max_tokens=2, text="More")
    assert nothing["usage"]["cached_tokens"] >= last["usage"]["total_tokens"] - 1


def test_a_turn_may_have_nothing_but_what_was_appended(server: Server) -> None:
    ahead, at_once = open_session(server), open_session(server)
    for text in ("Tell me", " more"):
        server.http.post(f"/v1/sessions/{ahead}/append", json={"text": text}).raise_for_status()
    assert (
        turn(server, ahead, max_tokens=6)["token_ids"]
        == turn(server, at_once, text="Tell me more", max_tokens=6)["token_ids"]
    )


# -- idempotency and order


def test_a_repeated_turn_is_told_again_and_not_run_again(server: Server) -> None:
    session = open_session(server)
    first = turn(server, session, text="Once", turn=0, max_tokens=6)
    again = turn(server, session, text="Once", turn=0, max_tokens=6)
    assert again["replayed"] is True
    assert (again["token_ids"], again["text"]) == (first["token_ids"], first["text"])
    assert (first["finish_reason"], first["stop"], again["stop"]) == ("length", None, None)
    assert server.http.get(f"/v1/sessions/{session}").json()["turns"] == 1
    assert refused(server, session, 409, text="Other", turn=0, max_tokens=6)["code"] == "turn_conflict"
    assert refused(server, session, 409, text="Later", turn=2, max_tokens=6)["code"] == "turn_out_of_order"
    assert turn(server, session, text="Next", turn=1, max_tokens=2)["turn"] == 1
    repeated = {"text": "x", "turn": 2}
    for replayed in (False, True):
        answer = server.http.post(f"/v1/sessions/{session}/append", json=repeated)
        assert answer.json()["replayed"] is replayed


def test_a_busy_session_refuses_or_queues(server: Server) -> None:
    session = open_session(server)
    body = {**GREEDY, "text": "Long", "max_tokens": 1000, "stream": True}
    with server.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
        events = events_of(response)
        assert next(events)["type"] == "turn.started"
        busy = server.http.post(f"/v1/sessions/{session}/turns", json={"text": "Now?"})
        assert busy.status_code == 409
        assert busy.headers["x-should-retry"] == "false"
        assert busy.json()["error"]["code"] == "session_busy"
        answers: list[Json] = []
        waiting = threading.Thread(
            target=lambda: answers.append(turn(server, session, text="Then", max_tokens=2, wait=True))
        )
        waiting.start()
        last = list(events)[-1]
    waiting.join(60)
    assert answers[0]["turn"] == 1
    assert answers[0]["usage"]["cached_tokens"] >= last["usage"]["total_tokens"] - 1


# -- interrupt, rewind, fork


@pytest.mark.parametrize("keep", [None, 3, 0])
def test_an_interruption_keeps_what_was_heard(server: Server, keep: int | None) -> None:
    session = open_session(server)
    turn(server, session, token_ids=ids(20), max_tokens=4)
    body = {**GREEDY, "token_ids": ids(10, 1), "max_tokens": 3000, "stream": True}
    with server.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
        events = events_of(response)
        heard = 0
        while heard < 6:
            heard += len(next(events).get("token_ids", []))
        stopped = server.http.post(f"/v1/sessions/{session}/interrupt", json={"keep": keep})
        assert stopped.json()["interrupted"] is True
        last = list(events)[-1]
    shown = server.http.get(f"/v1/sessions/{session}").json()
    if keep == 0:
        assert last["finish_reason"] == "abort"
        assert (shown["tokens"], shown["turns"]) == (24, 1)
    else:
        assert last["finish_reason"] == "interrupt"
        kept = last["kept_tokens"]
        assert kept == (len(last["token_ids"]) if keep is None else keep)
        assert (shown["tokens"], shown["turns"]) == (34 + kept, 2)
    history = [*ids(20), *alone(server, ids(20), 4)]
    if keep != 0:
        history += [*ids(10, 1), *last["token_ids"][: last["kept_tokens"]]]
    after = turn(server, session, token_ids=ids(3, 2), max_tokens=5)
    assert after["token_ids"] == alone(server, [*history, *ids(3, 2)], 5)


def test_interrupting_nothing_says_so(server: Server) -> None:
    session = open_session(server)
    response = server.http.post(f"/v1/sessions/{session}/interrupt")
    assert response.json()["interrupted"] is False


def test_rewind_and_fork_continue_as_if_never_said(server: Server) -> None:
    session = open_session(server)
    turns = [turn(server, session, text=word, max_tokens=5) for word in ("One", "Two", "Three")]
    forked = server.http.post(f"/v1/sessions/{session}/fork", json={"turns": 2}).json()
    assert (forked["turns"], forked["tokens"]) == (2, turns[1]["usage"]["total_tokens"])
    again = turn(server, forked["id"], text="Three", max_tokens=5)
    assert again["token_ids"] == turns[2]["token_ids"]
    rewound = server.http.post(f"/v1/sessions/{session}/rewind", json={"turns": 1}).json()
    assert rewound["tokens"] == turns[0]["usage"]["total_tokens"]
    assert turn(server, session, text="Two", max_tokens=5)["token_ids"] == turns[1]["token_ids"]
    empty = server.http.post(f"/v1/sessions/{session}/rewind", json={"length": 0}).json()
    assert (empty["turns"], empty["tokens"]) == (0, 0)
    for body in ({}, {"turns": 1, "length": 1}, {"turns": 9}, {"length": 10_000}, {"turns": -1}):
        assert server.http.post(f"/v1/sessions/{session}/rewind", json=body).status_code == 400


def test_idle_time_closes_a_session(server: Server) -> None:
    session = open_session(server, timeout=0.01)
    for _ in range(500):
        if server.http.get(f"/v1/sessions/{session}").status_code == 404:
            return
    raise AssertionError("the session never expired")


def test_closing_under_a_turn_is_deferred(server: Server) -> None:
    session = open_session(server)
    body = {**GREEDY, "text": "Long", "max_tokens": 100, "stream": True}
    with server.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
        events = events_of(response)
        next(events)
        closed = server.http.delete(f"/v1/sessions/{session}").json()
        assert closed == {
            "id": session,
            "object": "session.deleted",
            "deleted": False,
            "deferred": True,
            "freed_pages": None,
        }
        assert list(events)[-1]["usage"]["completion_tokens"] == 100
    assert server.http.get(f"/v1/sessions/{session}").status_code == 404


# -- refusals


def test_b1_a_turn_that_does_not_fit_changes_nothing(server: Server) -> None:
    session = open_session(server)
    first = turn(server, session, token_ids=ids(16), max_tokens=8)
    error = refused(server, session, 400, token_ids=ids(4100), max_tokens=8)
    assert "4124" in error["message"]
    assert "4096" in error["message"]
    assert error["code"] == "context_length_exceeded"
    third = turn(server, session, token_ids=ids(16, 1), max_tokens=8)
    said = first["usage"]["total_tokens"]
    assert third["usage"]["prompt_tokens"] == said + 16
    assert third["usage"]["cached_tokens"] >= said - 1


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**31, 1e20, "x", None, 2**70, True, 1.5])
def test_b12_a_token_id_that_is_none_is_named(server: Server, bad: object) -> None:
    session = open_session(server)
    content = json.dumps({"token_ids": [1, bad], "max_tokens": 2})
    for path in ("turns", "append"):
        body = content if path == "turns" else json.dumps({"token_ids": [1, bad]})
        response = server.http.post(
            f"/v1/sessions/{session}/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] in ("token_ids", "token_ids.1")
        assert "token_ids" in error["message"]


@pytest.mark.parametrize("path", ["turns", "append"])
@pytest.mark.parametrize("field", ["text", "messages", "token_ids"])
def test_input_that_is_too_long_is_named_as_it_came(server: Server, field: str, path: str) -> None:
    session = open_session(server)
    long = "x" * 5000
    body = {"text": long, "messages": [{"role": "user", "content": long}], "token_ids": ids(5000)}
    response = server.http.post(f"/v1/sessions/{session}/{path}", json={field: body[field]})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", field)
    assert server.http.get(f"/v1/sessions/{session}").json()["tokens"] == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 2}, "top_p"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"seed": -1}, "seed"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"text": ""}, "text"),
        ({"text": "a", "token_ids": [1]}, "text"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "pirate", "content": "x"}]}, "messages.0.role"),
    ],
)
def test_b19_absurd_parameters_are_named(server: Server, body: dict[str, object], param: str) -> None:
    session = open_session(server)
    error = refused(server, session, 400, **({"text": "Hello"} | body if "messages" not in body else body))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_nan_is_no_number(server: Server) -> None:
    session = open_session(server)
    response = server.http.post(
        f"/v1/sessions/{session}/turns",
        content='{"text": "Hello", "temperature": NaN}',
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 400
    assert "temperature" in response.text


def test_what_does_not_exist_is_404_and_what_does_is_409(server: Server) -> None:
    session = open_session(server, session_id="mine")
    assert session == "mine"
    again = server.http.post("/v1/sessions", json={"session_id": "mine"})
    assert again.status_code == 409
    assert again.headers["x-should-retry"] == "false"
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/interrupt"), ("POST", "/fork")):
        response = server.http.request(method, f"/v1/sessions/nobody{path}")
        assert response.status_code == 404, (method, path)
        assert response.json()["error"]["type"] == "not_found_error"
    assert refused(server, "nobody", 404, text="Hello")["param"] == "session_id"
    assert server.http.post("/v1/sessions", json={"session_id": "no spaces please"}).status_code == 400


def test_an_empty_session_has_nothing_to_answer(server: Server) -> None:
    session = open_session(server)
    assert "at least 1 token" in refused(server, session, 400)["message"]


def test_the_tiny_model_never_ends_by_itself(server: Server) -> None:
    assert turn(server, open_session(server), token_ids=ids(10), max_tokens=3000)["finish_reason"] == "length"


def test_half_a_character_is_refused_and_whole_ones_arrive(server: Server) -> None:
    session = open_session(server)
    path, headers = f"/v1/sessions/{session}/turns", {"content-type": "application/json"}
    for content in (b'{"text": "\\ud800"}', b'{"text": "a", "stop": "\\ud800"}', b'{"text": "\xff"}', b"[" * 100_000):
        response = server.http.post(path, content=content, headers=headers)
        assert response.status_code == 400, (content[:40], response.text)
    answer = turn(server, session, text="\U0001f600 \u4f60\u597d", max_tokens=30)
    body = {**GREEDY, "text": "More \U0001f600", "max_tokens": 30, "stream": True}
    with server.http.stream("POST", path, json=body) as response:
        deltas = [event["text"] for event in events_of(response) if event["type"] == "delta"]
    for delta in [answer["text"], *deltas]:
        delta.encode("utf-8")


def test_b15_the_next_turn_after_a_timeout_is_taken_at_once(server: Server) -> None:
    session = open_session(server)
    body = {**GREEDY, "token_ids": ids(5), "max_tokens": 3500}
    for _ in range(5):
        impatient = httpx.Client(base_url=server.url, timeout=httpx.Timeout(60.0, read=0.05))
        with impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post(f"/v1/sessions/{session}/turns", json=body)
        assert turn(server, session, token_ids=ids(2), max_tokens=1)["usage"]["completion_tokens"] == 1
