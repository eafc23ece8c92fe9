"""Streaming sessions in the native dialect: the arithmetic of turns, every refusal in its words, aborts, flush."""

import httpx
import pytest
from tests.api.native.calls import (
    LONG,
    Json,
    Waiting,
    abort,
    abort_running,
    body_of,
    chunks_of,
    close_session,
    generate,
    ids,
    open_session,
    post,
    refusal,
    running,
    stream,
    turn,
)
from tests.api.native.conftest import BOS, CONTEXT
from tests.api.test_life import sample, until
from tests.support.server import Server

pytestmark = pytest.mark.http_scenario


def counts(answer: Json) -> tuple[int, int, int]:
    meta = answer["meta_info"]
    return meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]


# -- the arithmetic


@pytest.mark.parametrize("is_streamed", [False, True])
def test_b2_prompts_add_up_and_the_history_is_cached(narrow: Server, is_streamed: bool) -> None:
    session = open_session(narrow)
    history: list[int] = []
    total = 0
    for number in range(5):
        new = [BOS, *ids(11, number)]
        if is_streamed:
            answer = stream(narrow, 7, input_ids=new, session_params={"id": session})[-1]
        else:
            answer = turn(narrow, session, new, 7)
        prompt, completion, cached = counts(answer)
        kept = new if number == 0 else new[1:]
        assert prompt == total + len(kept)
        assert cached in ((0,) if number == 0 else (total, total - 1))
        history += kept
        assert answer["output_ids"] == generate(narrow, 7, input_ids=history)["output_ids"]
        history += answer["output_ids"]
        total = prompt + completion
        assert len(history) == total


def test_aborts_leave_the_arithmetic_as_it_was(narrow: Server) -> None:
    session = open_session(narrow)
    new = [BOS, *ids(20)]
    for _ in range(2):
        abort_running(narrow, input_ids=new, session_params={"id": session})
    first = turn(narrow, session, new, 6)
    assert counts(first)[0] == len(new)
    total = sum(counts(first)[:2])
    reason = abort_running(narrow, input_ids=new, session_params={"id": session})["meta_info"]["finish_reason"]
    assert reason == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    second = turn(narrow, session, new, 6)
    assert counts(second)[0] == total + len(new) - 1
    assert counts(second)[2] >= total - 1
    history = [*new, *first["output_ids"], *new[1:]]
    assert second["output_ids"] == generate(narrow, 6, input_ids=history)["output_ids"]


def test_a_flush_drops_the_cache_and_keeps_the_history(narrow: Server) -> None:
    session = open_session(narrow)
    first = turn(narrow, session, ids(40), 5)
    assert narrow.http.get("/flush_cache").status_code == 200
    second = turn(narrow, session, ids(8, 1), 5)
    assert counts(second)[0] == sum(counts(first)[:2]) + 8
    assert counts(second)[2] == 0
    history = [*ids(40), *first["output_ids"], *ids(8, 1)]
    assert second["output_ids"] == generate(narrow, 5, input_ids=history)["output_ids"]


def test_turns_without_tokens_go_on_and_turns_without_output_only_append(narrow: Server) -> None:
    session = open_session(narrow)
    appended = turn(narrow, session, ids(30), 0)
    assert appended["output_ids"] == []
    assert appended["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    first = turn(narrow, session, [], 4)
    second = turn(narrow, session, [BOS], 4)
    whole = generate(narrow, 8, input_ids=ids(30))
    assert [*first["output_ids"], *second["output_ids"]] == whole["output_ids"]


def test_b13_each_turn_has_its_own_parameters(server: Server) -> None:
    session = open_session(server)
    for number, count in enumerate((4, 1, 9)):
        sampling = {"temperature": number / 2, "sampling_seed": number, "max_new_tokens": count}
        answer = generate(server, count, sampling, input_ids=ids(5, number), session_params={"id": session})
        assert answer["meta_info"]["completion_tokens"] == count
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": count}


def test_b17_cold_warm_and_in_sessions_the_tokens_are_the_same(server: Server) -> None:
    for number in range(6):
        prompt = ids(60 + number, number)
        assert server.http.post("/flush_cache").status_code == 200
        cold = generate(server, 12, input_ids=prompt)["output_ids"]
        assert generate(server, 12, input_ids=prompt)["output_ids"] == cold
        assert generate(server, 12, input_ids=prompt, cache_salt="x")["output_ids"] == cold
        session = open_session(server)
        abort_running(server, input_ids=prompt, session_params={"id": session})
        assert turn(server, session, prompt, 12)["output_ids"] == cold
        close_session(server, session)


def test_a_salt_shares_nothing_with_others_and_is_chosen_with_the_first_turn(server: Server) -> None:
    prompt = ids(50, 77)
    generate(server, 2, input_ids=prompt)
    assert counts(generate(server, 2, input_ids=prompt))[2] >= 48
    assert counts(generate(server, 2, input_ids=prompt, cache_salt="a"))[2] == 0
    session = open_session(server)
    first = turn(server, session, prompt, 2, cache_salt="b")
    assert counts(first)[2] == 0
    assert counts(turn(server, session, ids(3), 2, cache_salt="b"))[2] >= 51
    assert counts(turn(server, session, ids(3), 2))[2] >= 51
    response = post(server, 2, input_ids=prompt, session_params={"id": session}, cache_salt="c")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "cache_salt"


# -- every refusal in its words


def test_an_overlapping_turn(server: Server) -> None:
    session = open_session(server)
    with running(server, input_ids=ids(5), session_params={"id": session}):
        refusal(
            server,
            "Streaming session already has an active request.",
            input_ids=ids(5),
            session_params={"id": session},
        )


def test_a_session_that_was_to_be_closed(server: Server) -> None:
    session = open_session(server)
    with running(server, input_ids=ids(5), session_params={"id": session}, rid="long") as chunks:
        assert close_session(server, session) == {"session_id": session, "deferred": True, "freed_pages": None}
        message = f"Invalid request: close was requested for session {session}"
        refusal(server, message, input_ids=ids(5), session_params={"id": session})
        assert abort(server, "long") == 200
        assert list(chunks)[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    message = f"Invalid request: session id {session} does not exist"
    refusal(server, message, input_ids=ids(5), session_params={"id": session})


@pytest.mark.parametrize(("name", "value"), [("replace", True), ("drop_previous_output", True), ("offset", -1)])
def test_what_append_only_does_not_have(server: Server, name: str, value: object) -> None:
    session = open_session(server)
    message = f"Streaming sessions do not support {name}."
    refusal(server, message, input_ids=ids(5), session_params={"id": session, name: value})
    allowed = {"id": session, "rid": "anything", "replace": False, "drop_previous_output": False, "offset": 0}
    assert generate(server, 2, input_ids=ids(5), session_params=allowed)["output_ids"]


def test_an_unknown_session_and_nothing_to_run(server: Server) -> None:
    message = "Invalid request: session id nobody does not exist"
    refusal(server, message, input_ids=ids(5), session_params={"id": "nobody"})
    message = "A session request must contain input tokens after restoring history."
    refusal(server, message, input_ids=[], session_params={"id": open_session(server)})


def test_b1_b14_a_session_that_is_full_is_told_both_lengths_and_goes_on(narrow: Server) -> None:
    session = open_session(narrow)
    first = turn(narrow, session, ids(16), 8)
    total = sum(counts(first)[:2])
    for too_many in (CONTEXT - total, CONTEXT - total + 1, CONTEXT - 1):
        refusal(
            narrow,
            f"Input length ({total + too_many} tokens) exceeds the maximum allowed length ({CONTEXT - 1} tokens). "
            "Use a shorter input or enable --allow-auto-truncate.",
            input_ids=ids(too_many),
            session_params={"id": session},
        )
    for is_streamed in (False, True):
        response = post(narrow, 8, input_ids=ids(CONTEXT + 88), session_params={"id": session}, stream=is_streamed)
        assert response.status_code == 400
        assert f"({CONTEXT + 88} tokens) is longer than the model's context length ({CONTEXT} tokens)" in response.text
    second = turn(narrow, session, ids(16, 1), 8)
    assert counts(second)[0] == total + 16
    assert counts(second)[2] >= total - 1
    third = turn(narrow, session, ids(CONTEXT - 1 - sum(counts(second)[:2])), 8)
    assert third["meta_info"]["completion_tokens"] == 1
    assert third["meta_info"]["finish_reason"]["type"] == "length"


def test_several_answers_have_no_place_in_a_session(server: Server) -> None:
    session = open_session(server)
    response = post(server, 2, {"n": 2}, input_ids=ids(3), session_params={"id": session})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "sampling_params.n")
    response = post(server, 2, input_ids=[ids(3), ids(4)], session_params={"id": session})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "session_params")
    response = post(server, 2, input_ids=ids(3), session_params={"id": session}, session_id=session)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "session_id and session_params cannot both be set."


def test_prompt_logprobs_of_a_session_are_forced_to_those_of_the_output(server: Server) -> None:
    session = open_session(server)
    fields = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    meta = turn(server, session, ids(5), 3, **fields)["meta_info"]
    assert meta["input_token_logprobs"] == [[None, ids(5)[-1], None]]
    assert meta["cached_tokens"] == 0
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 3


# -- open and close


def test_opening(server: Server) -> None:
    name = open_session(server, session_id="mine")
    assert name == "mine"
    for streaming in (True, False):
        body = {"capacity_of_str_len": 0, "session_id": "mine", "streaming": streaming}
        response = server.http.request("GET", "/open_session", json=body)
        assert response.status_code == 400
        message = "Failed to open the session. Check if a session with the same id is still open."
        assert response.json()["error"]["message"] == message
    assert close_session(server, "mine") == {"session_id": "mine", "deferred": False, "freed_pages": 0}
    assert close_session(server, "mine")["deferred"] is False
    made_up = open_session(server)
    assert len(made_up) == 32
    int(made_up, 16)
    turn(server, made_up, ids(40), 8)
    assert close_session(server, made_up)["freed_pages"] > 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "capacity_of_str_len"),
        ({"capacity_of_str_len": "x"}, "capacity_of_str_len"),
        ({"capacity_of_str_len": 1, "session_id": 5}, "session_id"),
        ({"capacity_of_str_len": 1, "timeout": -1}, "timeout"),
    ],
)
def test_a_body_of_another_shape_is_400_in_the_dialects_words(server: Server, body: Json, field: str) -> None:
    response = server.http.post("/open_session", json=body)
    assert response.status_code == 400
    said = response.json()
    assert (said["object"], said["type"], said["code"]) == ("error", "Bad Request", 400)
    assert field in said["message"]


# -- aborts


def test_a_turn_that_waits_in_the_queue_is_aborted_there(narrow: Server) -> None:
    session = open_session(narrow)
    with running(narrow, input_ids=ids(5), rid="runs"):
        waiting = Waiting(narrow, 4, input_ids=ids(5), session_params={"id": session}, rid="waits")
        assert abort(narrow, "waits") == 200
        answer = waiting.answer()
    meta = answer["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["finish_reason"]["message"] == "Abort in waiting queue"
    assert meta["finish_reason"]["status_code"] is None
    assert not {"prompt_tokens", "cached_tokens"} & set(meta)


def test_aborts_are_exact_and_a_running_turn_is_answered_200(server: Server) -> None:
    session = open_session(server)
    waiting = Waiting(server, LONG, input_ids=ids(5), session_params={"id": session}, rid="request-1")
    for rid in ("request", "request-", "request-11", ""):
        assert server.http.post("/abort_request", json={"rid": rid}).status_code == 404
    assert abort(server, "request-1") == 200
    reason = waiting.answer()["meta_info"]["finish_reason"]
    assert (reason["type"], reason["status_code"]) == ("abort", None)
    assert server.http.post("/abort_request", json={"rid": "request-1"}).status_code == 404


def test_all_are_aborted_and_nothing_is_flushed_while_something_runs(server: Server) -> None:
    with running(server, input_ids=ids(5)) as one, running(server, input_ids=ids(6)) as other:
        assert server.http.post("/flush_cache").status_code == 400
        assert server.http.post("/abort_request", json={"abort_all": True}).status_code == 200
        for chunks in (one, other):
            assert list(chunks)[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.http.post("/flush_cache").status_code == 200


def test_a_request_id_is_given_to_one_at_a_time(server: Server) -> None:
    with running(server, input_ids=ids(5), rid="taken"):
        response = post(server, 2, input_ids=ids(5), rid="taken")
        assert response.status_code == 400
        assert "taken" in response.json()["error"]["message"]
    for _ in range(20):  # whoever has read the last chunk may use the name again
        assert stream(server, 2, input_ids=ids(5), rid="again")[-1]["output_ids"]


def test_b6_b10_b15_who_goes_away_undoes_the_turn_and_the_next_one_is_taken(server: Server) -> None:
    session = open_session(server)
    first = turn(server, session, ids(2000), 4)
    total = sum(counts(first)[:2])
    before = sample(server, "sojourn_requests_aborted_total", reason="disconnect")
    for number in range(8):
        body = body_of(1500, stream=True, input_ids=ids(6, number), session_params={"id": session})
        with server.http.stream("POST", "/generate", json=body) as response:
            chunks = chunks_of(response)
            for _ in range(3):
                next(chunks)
        until(server, "sojourn_requests_aborted_total", before + number + 1, reason="disconnect")
    after = turn(server, session, ids(9, 2), 4)
    assert counts(after)[0] == total + 9
    assert counts(after)[2] >= total - 1


@pytest.mark.parametrize("is_streamed", [False, True])
def test_b15_who_lost_patience_may_ask_again_at_once(server: Server, is_streamed: bool) -> None:
    session = open_session(server)
    total = sum(counts(turn(server, session, ids(20), 4))[:2])
    body = body_of(LONG, stream=is_streamed, input_ids=ids(6), session_params={"id": session})
    with (
        httpx.Client(base_url=server.url, timeout=0.3) as impatient,
        pytest.raises(httpx.TimeoutException),
        impatient.stream("POST", "/generate", json=body) as response,
    ):
        for _ in chunks_of(response):
            raise httpx.ReadTimeout("it takes too long")
    after = turn(server, session, ids(9, 2), 4)
    assert counts(after)[0] == total + 9


def test_the_same_session_is_reached_from_both_interfaces(server: Server) -> None:
    session = open_session(server)
    total = sum(counts(turn(server, session, ids(20), 4))[:2])
    for number in range(2):
        path = f"/v1/sessions/{session}/turns"
        usage = server.http.post(path, json={"token_ids": ids(5, number), "max_tokens": 3}).json()["usage"]
        assert usage["prompt_tokens"] == total + 5
        total = usage["total_tokens"]
        meta = turn(server, session, ids(4, number), 2)["meta_info"]
        assert meta["prompt_tokens"] == total + 4
        total += 6
