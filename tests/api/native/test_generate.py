"""`/generate` alone: what it answers, streamed and in batches, what it refuses; and the endpoints around it."""

from itertools import pairwise

import pytest
from tests.api.native.calls import VOCAB, Json, close_session, generate, ids, open_session, post, stream
from tests.support.model_files import TOKENS
from tests.support.server import Server

from sojourn.api.engine_link import EngineDownError
from sojourn.api.errors import DrainingError, LimitError
from sojourn.api.native.faults import native_fault
from sojourn.api.off_loop import LONG, SCORED
from sojourn.core.errors import ConflictError, NotFoundError, SojournError

pytestmark = pytest.mark.http_scenario


def test_text_and_ids_are_the_same_and_chunks_say_all_so_far(server: Server) -> None:
    text = "Hello!"
    whole = generate(server, 20, text=text)
    by_ids = generate(server, 20, input_ids=[TOKENS.index(character) for character in text])
    assert by_ids["output_ids"] == whole["output_ids"]
    chunks = stream(server, 20, text=text, rid="named")
    for before, after in pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    assert {chunk["meta_info"]["id"] for chunk in chunks} == {"named"}
    assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])
    assert all(chunk["meta_info"]["prompt_tokens"] == whole["meta_info"]["prompt_tokens"] for chunk in chunks)
    assert (chunks[-1]["text"], chunks[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 20}
    cached = {chunk["meta_info"]["cached_tokens"] for chunk in chunks}
    assert len(cached) == 1


def test_what_is_known_of_a_generation(server: Server) -> None:
    meta = generate(server, 3, input_ids=ids(40, 9))["meta_info"]
    again = generate(server, 3, input_ids=ids(40, 9))["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (40, 3, 0)
    assert again["cached_tokens"] == 32
    assert {"id", "weight_version", "num_retractions", "reasoning_tokens", "e2e_latency", "dp_rank"} <= set(meta)


def test_log_probabilities_of_the_output(server: Server) -> None:
    fields: Json = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    answer = generate(server, 4, input_ids=ids(6), **fields)
    meta = answer["meta_info"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    for entry, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert top[0] == entry
        assert len(top) == 2
        assert isinstance(entry[2], str)
    last = ids(6)[-1]
    assert [entry[:2] for entry in meta["input_token_logprobs"]] == [[None, last]]
    assert meta["input_top_logprobs"] == [None]


@pytest.mark.parametrize("start", [0, 1, 63, 64, 150, 207, 208])
def test_log_probabilities_of_the_prompt_are_those_it_had_as_output(server: Server, start: int) -> None:
    """What was generated, and then is a prompt, is exactly as likely; the first token told has no log-probability."""
    prompt = ids(200, 6)
    fields: Json = {"return_logprob": True, "top_logprobs_num": 3}
    said = generate(server, 9, input_ids=prompt, return_text_in_logprobs=True, **fields)
    whole = [*prompt, *said["output_ids"]]
    answer = generate(server, 2, input_ids=whole, logprob_start_len=start, return_text_in_logprobs=True, **fields)
    meta, output = answer["meta_info"], said["meta_info"]
    told, tops = meta["input_token_logprobs"], meta["input_top_logprobs"]
    assert [entry[1] for entry in told] == whole[start:]
    assert (told[0][0], tops[0]) == (None, None)
    assert all(entry[0] <= 0 and isinstance(entry[2], str) for entry in told[1:])
    count = min(9, len(told) - 1)
    assert told[len(told) - count :] == output["output_token_logprobs"][9 - count :]
    assert tops[len(tops) - count :] == output["output_top_logprobs"][9 - count :]
    assert meta["cached_tokens"] <= start
    assert meta["cached_tokens"] >= min(start, 192) - start % 16
    assert len(meta["output_token_logprobs"]) == 2


def test_log_probabilities_of_a_prompt_do_not_depend_on_what_is_cached_or_runs(server: Server) -> None:
    fields: Json = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    alone = generate(server, 0, input_ids=ids(150, 12), **fields)["meta_info"]
    assert len(alone["input_token_logprobs"]) == 150
    assert (alone["output_token_logprobs"], alone["completion_tokens"]) == ([], 0)
    prompts = [ids(150, 12), ids(90, 13), ids(150, 12)]
    batch: list[Json] = post(server, 0, input_ids=prompts, **fields).json()
    for meta in (batch[0]["meta_info"], batch[2]["meta_info"]):
        assert meta["input_token_logprobs"] == alone["input_token_logprobs"]
        assert meta["input_top_logprobs"] == alone["input_top_logprobs"]
    later = generate(server, 3, input_ids=ids(150, 12), **{**fields, "logprob_start_len": 100})["meta_info"]
    assert later["input_token_logprobs"][1:] == alone["input_token_logprobs"][101:]
    assert later["cached_tokens"] == 96


def test_streamed_chunks_say_the_prompt_from_the_first_on(server: Server) -> None:
    """Of a prompt that is long enough to be put into words off the loop, too."""
    fields: Json = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    for length in (100, 2 * LONG // SCORED):
        asked = {"input_ids": ids(length, 3), "logprob_start_len": 10, **fields}
        whole = generate(server, 5, **asked)["meta_info"]
        chunks = [chunk["meta_info"] for chunk in stream(server, 5, **asked)]
        for name in ("token_logprobs", "top_logprobs"):
            assert len(whole[f"input_{name}"]) == length - 10
            for chunk in chunks:
                assert chunk[f"input_{name}"] == whole[f"input_{name}"]
                assert chunk[f"output_{name}"] == whole[f"output_{name}"][: chunk["completion_tokens"]]
            assert len(chunks[-1][f"output_{name}"]) == 5


@pytest.mark.parametrize("start", [6, 7, -2])
def test_a_prompt_ends_before_what_is_asked_of_it(server: Server, start: int) -> None:
    response = post(server, 4, input_ids=ids(6), return_logprob=True, logprob_start_len=start)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprob_start_len")


# -- ends


def test_stops_are_trimmed_unless_they_are_to_stay(server: Server) -> None:
    whole = generate(server, 40, text="Stop?")
    text, output = whole["text"], whole["output_ids"]
    stop = next(text[at : at + 2] for at in range(6, len(text)) if text.find(text[at : at + 2]) == at)
    for trims in (True, False):
        answer = generate(server, 40, {"stop": [stop], "no_stop_trim": not trims}, text="Stop?")
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert answer["text"] == text[: text.find(stop)] + ("" if trims else stop)
        assert answer["output_ids"] == output[: len(answer["output_ids"])]
        token = answer["output_ids"][-1]
        at = output.index(token)
        answer = generate(server, 40, {"stop_token_ids": [token], "no_stop_trim": not trims}, text="Stop?")
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
        assert answer["output_ids"] == output[: at + 1]
        one_more = generate(server, at + 1, text="Stop?")["text"]
        one_less = generate(server, at, text="Stop?")["text"] if at else ""
        assert answer["text"] == (one_less if trims else one_more)


def test_eos_ends_a_generation_unless_it_is_ignored(server: Server) -> None:
    eos = VOCAB - 1
    sampling: Json = {"logit_bias": {str(eos): 100}}
    ended = generate(server, 5, sampling, input_ids=ids(4))
    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": eos}
    assert (ended["output_ids"], ended["text"]) == ([eos], "")
    shown = generate(server, 5, {**sampling, "skip_special_tokens": False, "no_stop_trim": True}, input_ids=ids(4))
    assert shown["text"] == "<|im_end|>"
    ignored = generate(server, 5, {**sampling, "ignore_eos": True}, input_ids=ids(4))
    assert ignored["output_ids"] == [eos] * 5


def test_chance_is_a_function_of_the_seed(server: Server) -> None:
    sampling: Json = {"temperature": 5.0, "sampling_seed": 7}
    one = generate(server, 12, sampling, input_ids=ids(4))["output_ids"]
    assert generate(server, 12, sampling, input_ids=ids(4))["output_ids"] == one
    assert generate(server, 12, {**sampling, "sampling_seed": 8}, input_ids=ids(4))["output_ids"] != one


# -- batches


def test_batches_and_several_answers_come_as_lists(server: Server) -> None:
    prompts = [ids(5, 1), ids(9, 2), ids(13, 3)]
    response = post(server, 6, input_ids=prompts, rid=["a", "b", "c"])
    assert response.status_code == 200, response.text
    assert [one["meta_info"]["id"] for one in response.json()] == ["a", "b", "c"]
    for prompt, one in zip(prompts, response.json(), strict=True):
        assert one["output_ids"] == generate(server, 6, input_ids=prompt)["output_ids"]
    sampling: Json = {"n": 3, "temperature": 5.0, "sampling_seed": 1}
    several = post(server, 10, sampling, input_ids=ids(4)).json()
    assert len(several) == len({tuple(one["output_ids"]) for one in several}) == 3
    for field, value in (("rid", ["a", "a", "b"]), ("sampling_params", [{}]), ("stream", True)):
        response = post(server, 4, **{"input_ids": prompts, field: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)


def test_one_bad_prompt_refuses_the_batch(server: Server) -> None:
    response = post(server, 4, input_ids=[ids(4), []])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input_ids")


@pytest.mark.parametrize("field", ["text", "input_ids"])
@pytest.mark.parametrize("streaming", [True, False])
def test_input_that_is_too_long_is_named_as_it_came(server: Server, streaming: bool, field: str) -> None:
    session = open_session(server, streaming=streaming)
    asked = {"id": session}
    first = generate(server, 2, input_ids=ids(3000), session_params=asked)
    if not streaming:
        asked["rid"] = first["meta_info"]["id"]
    for length in (2000, 5000):
        given = {"text": "x" * length, "input_ids": ids(length)}[field]
        response = post(server, 2, **{field: given}, session_params=asked)
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert generate(server, 2, text="Hello", session_params=asked)["meta_info"]["prompt_tokens"] == 3007
    close_session(server, session)


# -- refusals


@pytest.mark.parametrize("value", [-1, VOCAB, 2**31, 1e20, "x", None, True, 1.5])
@pytest.mark.parametrize("field", ["input_ids", "stop_token_ids", "logit_bias"])
def test_b12_what_is_no_token_id_is_refused_by_name(server: Server, field: str, value: object) -> None:
    if field == "input_ids":
        response = post(server, 2, input_ids=[3, value])
    elif field == "stop_token_ids":
        response = post(server, 2, {"stop_token_ids": [value]}, input_ids=[3])
    else:
        response = post(server, 2, {"logit_bias": {str(value): 1.0}}, input_ids=[3])
    assert response.status_code == 400
    assert field in response.text


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "input_ids"),
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1], "input_embeds": [[0.5]]}, "input_embeds"),
        ({"text": "a", "image_data": "x.png"}, "image_data"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "session_params": {"id": "x", "colour": 1}}, "colour"),
        ({"text": "a", "sampling_params": {"colour": 1}}, "colour"),
        ({"text": "a", "sampling_params": {"regex": "a"}}, "regex"),
        ({"text": "a", "sampling_params": {"min_new_tokens": 3}}, "min_new_tokens"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 2**40}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"top_p": 0}}, "top_p"),
        ({"text": "a", "sampling_params": {"top_p": 2}}, "top_p"),
        ({"text": "a", "sampling_params": {"top_k": 0}}, "top_k"),
        ({"text": "a", "sampling_params": {"n": 0}}, "n"),
        ({"text": "a", "sampling_params": {"n": 10**9}}, "n"),
        ({"text": "a", "sampling_params": {"sampling_seed": -1}}, "sampling_seed"),
        ({"text": "a", "sampling_params": {"stop": [""]}}, "stop"),
        ({"text": "a", "sampling_params": {"stop": ["x"] * 10_000}}, "stop"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 10**6}, "top_logprobs_num"),
        ({"text": "a", "rid": "no spaces"}, "rid"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_refusals_name_the_field(server: Server, fields: Json, named: str, is_streamed: bool) -> None:
    response = server.http.post("/generate", json={**fields, "stream": is_streamed})
    assert response.status_code == 400, response.text
    assert named in response.text


def test_what_is_said_to_others_and_null_are_accepted(server: Server) -> None:
    fields: Json = {"priority": 3, "routed_dp_rank": 0, "lora_path": None, "image_data": None, "session_id": "user-1"}
    assert server.http.put("/generate", json={"text": "a", **fields}).status_code == 200
    assert server.http.post("/generate", content=b"{").status_code == 400


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LimitError("full"), 503),
        (EngineDownError("down"), 503),
        (DrainingError("ends"), 503),
        (ConflictError("busy"), 400),
        (NotFoundError("nobody"), 400),
        (SojournError("ours"), 500),
    ],
)
def test_what_time_changes_is_503_and_says_when_to_come_back(error: SojournError, status: int) -> None:
    fault = native_fault(error, 2)
    assert fault.status == status
    assert ("retry-after" in fault.headers) == (status == 503)


# -- around it


def test_health_and_information(server: Server) -> None:
    headers = {"Authorization": "Bearer none"}
    assert server.http.get("/health_generate", headers=headers).status_code == 200
    assert server.http.get("/health").status_code == 200
    for path in ("/get_model_info", "/model_info"):
        assert server.http.get(path).json()["is_generation"] is True
    for path in ("/get_server_info", "/server_info"):
        shown = server.http.get(path).json()
        assert (shown["context_length"], shown["max_total_num_tokens"]) == (4096, 16384)
