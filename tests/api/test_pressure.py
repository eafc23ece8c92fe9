"""Rows of the table of scenarios in a pool that is too small for everybody: shortage is weather, answers stay the same."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.api.conftest import quiet
from tests.api.test_life import sample, until
from tests.api.test_sessions import GREEDY, Json, events_of, ids, open_session, refused, turn
from tests.support.server import Server, serving

pytestmark = pytest.mark.http_scenario
CONTEXT = 1024


@pytest.fixture(scope="module")
def small_server(models: Path) -> Iterator[Server]:
    """One context of pages for all."""
    size = ("--context", str(CONTEXT), "--pool-tokens", str(CONTEXT), "--chunk", "64", "--max-running", "8")
    with serving(models, *size) as server:
        yield server


@pytest.fixture
def small(small_server: Server) -> Iterator[Server]:
    yield small_server
    quiet(small_server)


def at_once(server: Server, sessions: list[str], bodies: list[Json]) -> list[httpx.Response]:
    def run(session: str, body: Json) -> httpx.Response:
        return server.http.post(f"/v1/sessions/{session}/turns", json={**GREEDY, **body})

    with ThreadPoolExecutor(len(sessions)) as pool:
        return list(pool.map(run, sessions, bodies))


def answer_of(server: Server, prompt: list[int], count: int) -> list[int]:
    """By a session that has the pool to itself."""
    session = open_session(server)
    answer = turn(server, session, token_ids=prompt, max_tokens=count)
    server.http.delete(f"/v1/sessions/{session}")
    return list(answer["token_ids"])


def test_b3_b4_eight_turns_in_a_pool_for_two_all_finish_with_the_right_tokens(small: Server) -> None:
    expected = [answer_of(small, ids(480, number), 20) for number in range(8)]
    sessions = [open_session(small) for _ in range(8)]
    bodies: list[Json] = [{"token_ids": ids(480, number), "max_tokens": 20} for number in range(8)]
    responses = at_once(small, sessions, bodies)
    assert any(response.status_code == 200 for response in responses)
    for number, response in enumerate(responses):
        if response.status_code in (429, 503):
            assert int(response.headers["retry-after"]) > 0
            response = at_once(small, [sessions[number]], [bodies[number]])[0]  # noqa: PLW2901
        assert response.status_code == 200, response.text
        assert response.json()["token_ids"] == expected[number]


def test_b4_a_streamed_turn_that_is_retracted_sends_every_token_once(small: Server) -> None:
    expected = answer_of(small, ids(300, 1), 400)
    before = sample(small, "sojourn_retractions_total")
    sessions = [open_session(small) for _ in range(4)]

    def run(session: str) -> list[int]:
        body = {**GREEDY, "token_ids": ids(300, 1), "max_tokens": 400, "stream": True}
        with small.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
            events = list(events_of(response))
        sent = [token for event in events if event["type"] == "delta" for token in event["token_ids"]]
        assert sent == events[-1]["token_ids"]
        return sent

    with ThreadPoolExecutor(4) as pool:
        for sent in pool.map(run, sessions):
            assert sent == expected
    until(small, "sojourn_retractions_total", before + 1)


def test_b7_b8_idle_sessions_larger_than_the_pool_all_go_on(small: Server) -> None:
    sessions = [open_session(small) for _ in range(6)]
    histories: list[list[int]] = []
    for number, session in enumerate(sessions):
        first = turn(small, session, token_ids=ids(300, number), max_tokens=10)
        histories.append([*ids(300, number), *first["token_ids"]])
    answers = at_once(small, sessions, [{"token_ids": ids(20, 50 + number), "max_tokens": 10} for number in range(6)])
    for number, response in enumerate(answers):
        assert response.status_code == 200, response.text
        prompt = [*histories[number], *ids(20, 50 + number)]
        assert response.json()["token_ids"] == answer_of(small, prompt, 10)
    misses = [response.json()["cache"]["miss_reason"] for response in answers]
    assert set(misses) <= {None, "evicted", "demoted"}
    assert "evicted" in misses


@pytest.mark.scenario("B7")
def test_b7_a_stateless_chat_beside_idle_sessions_larger_than_the_pool(small: Server) -> None:
    sessions = [open_session(small) for _ in range(7)]
    histories: list[list[int]] = []
    for number, session in enumerate(sessions):
        first = turn(small, session, token_ids=ids(250, number), max_tokens=10)
        histories.append([*ids(250, number), *first["token_ids"]])
    held = [small.http.get(f"/v1/sessions/{session}").json() for session in sessions]
    assert sum(session["tokens"] for session in held) > CONTEXT
    model = small.http.get("/v1/models").json()["data"][0]["id"]
    question = [{"role": "user", "content": "Is anybody there?"}]
    chat = {"model": model, "messages": question, "max_tokens": 20, "temperature": 0}
    said = small.http.post("/v1/chat/completions", json=chat)
    assert said.status_code == 200, said.text
    for number, session in enumerate(sessions):
        new = ids(12, 90 + number)
        answer = turn(small, session, token_ids=new, max_tokens=8)
        assert answer["usage"]["prompt_tokens"] == len(histories[number]) + 12
        assert answer["token_ids"] == answer_of(small, [*histories[number], *new], 8)
    again = small.http.post("/v1/chat/completions", json=chat).json()
    assert again["choices"] == said.json()["choices"]


@pytest.mark.scenario("B8")
def test_b8_sessions_that_fill_the_pool_and_all_append_at_once(small: Server) -> None:
    sessions = [open_session(small) for _ in range(8)]
    for number, session in enumerate(sessions):
        turn(small, session, token_ids=ids(120, number), max_tokens=4)

    def append(session: str) -> httpx.Response:
        return small.http.post(f"/v1/sessions/{session}/append", json={"token_ids": ids(100, 7)})

    with ThreadPoolExecutor(8) as pool:
        for response in pool.map(append, sessions):
            assert response.status_code == 200, response.text
            assert response.json()["usage"]["prompt_tokens"] == 224
    for session in sessions:
        assert small.http.get(f"/v1/sessions/{session}").json()["tokens"] == 224


@pytest.mark.scenario("B14")
@pytest.mark.parametrize("length", [CONTEXT - 32, CONTEXT - 16, CONTEXT - 1, CONTEXT, CONTEXT + 1])
def test_b14_a_short_request_behind_one_at_the_bound_of_the_pool_answers(small: Server, length: int) -> None:
    """The pool has as many places as the context; its last token's KV is never computed."""
    short, long = open_session(small), open_session(small)
    idle = open_session(small)
    turn(small, idle, token_ids=ids(200, 3), max_tokens=2)
    bodies: list[Json] = [{"token_ids": ids(length, 1), "max_tokens": 1}, {"token_ids": ids(5, 2), "max_tokens": 3}]
    long_answer, short_answer = at_once(small, [long, short], bodies)
    assert short_answer.status_code == 200, short_answer.text
    assert len(short_answer.json()["token_ids"]) == 3
    if length < CONTEXT:
        assert long_answer.status_code == 200, long_answer.text
    else:
        assert long_answer.status_code == 400
        error = long_answer.json()["error"]
        assert error["param"]
        assert {str(length), str(CONTEXT)} <= set(error["message"].replace(":", " ").replace(",", "").split())


def test_priority_says_whose_kv_is_kept_and_is_shown(small: Server) -> None:
    kept = small.http.post("/v1/sessions", json={"priority": 5}).json()
    others = [small.http.post("/v1/sessions", json={"priority": -1}).json()["id"] for _ in range(3)]
    assert kept["priority"] == 5
    turn(small, kept["id"], token_ids=ids(250, 1), max_tokens=4)
    for number, session in enumerate(others):
        turn(small, session, token_ids=ids(300, 10 + number), max_tokens=4)
    assert small.http.get(f"/v1/sessions/{kept['id']}").json()["pages"]["full"]["leased"] > 0
    answer = turn(small, kept["id"], token_ids=ids(5, 2), max_tokens=2)
    assert answer["cache"]["source"] == "session"
    for priority in (101, -101, 1.5, "high"):
        response = small.http.post("/v1/sessions", json={"priority": priority})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "priority"


def test_b6_an_aborted_turn_costs_the_next_one_nothing(small: Server) -> None:
    session = open_session(small)
    first = turn(small, session, token_ids=ids(700), max_tokens=4)
    body = {**GREEDY, "token_ids": ids(20, 1), "max_tokens": 250, "stream": True}
    with small.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
        events = events_of(response)
        for _ in range(6):
            next(events)
    after = turn(small, session, token_ids=ids(9, 2), max_tokens=4, wait=True)
    assert after["usage"]["cached_tokens"] >= first["usage"]["total_tokens"] - 1
    assert after["cache"]["new_tokens"] <= 10


@pytest.mark.parametrize("count", [1, 8])
def test_b14_the_bound_is_exact_and_told(small: Server, count: int) -> None:
    for length in range(CONTEXT - count - 1, CONTEXT + 2):
        session = open_session(small)
        if length < CONTEXT:
            answer = turn(small, session, token_ids=ids(length), max_tokens=count)
            assert answer["usage"]["completion_tokens"] == min(count, CONTEXT - length)
        else:
            error = refused(small, session, 400, token_ids=ids(length), max_tokens=count)
            assert str(CONTEXT) in error["message"]
        small.http.delete(f"/v1/sessions/{session}")


def test_b17_cold_warm_after_a_stop_and_after_an_abort_are_the_same(small: Server) -> None:
    for number in range(10):
        prompt = ids(60 + number, number)
        small.http.post("/v1/pools/flush").raise_for_status()
        cold = answer_of(small, prompt, 12)
        assert answer_of(small, prompt, 12) == cold
        session = open_session(small)
        turn(small, session, token_ids=prompt[:30], max_tokens=20, stop=["a", "e", "0"])
        small.http.post(f"/v1/sessions/{session}/rewind", json={"length": 30}).raise_for_status()
        assert turn(small, session, token_ids=prompt[30:], max_tokens=12)["token_ids"] == cold
        small.http.post(f"/v1/sessions/{session}/rewind", json={"length": 0}).raise_for_status()
        body = {**GREEDY, "token_ids": prompt, "max_tokens": 500, "stream": True}
        with small.http.stream("POST", f"/v1/sessions/{session}/turns", json=body) as response:
            events = events_of(response)
            next(events)
        assert turn(small, session, token_ids=prompt, max_tokens=12, wait=True)["token_ids"] == cold
        small.http.delete(f"/v1/sessions/{session}")
