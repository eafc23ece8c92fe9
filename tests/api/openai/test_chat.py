"""Chat completions through the official client: shapes, streams, choices, sessions, refusals."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.support.server import Server, serving

pytestmark = pytest.mark.http_scenario
HELLO: list[Any] = [{"role": "user", "content": "Hello?"}]


def joined(chunks: Iterable[ChatCompletionChunk], n: int = 1) -> tuple[list[str], list[str | None]]:
    """Texts and finish reasons of the choices."""
    texts, reasons = [""] * n, [None] * n
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    return texts, reasons


def test_an_answer_is_what_the_client_expects(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=HELLO, max_tokens=7, temperature=0)
    ChatCompletion.model_validate(answer.model_dump(), strict=True)
    assert answer.id.startswith("chatcmpl-")
    assert answer.id.removeprefix("chatcmpl-") == answer._request_id
    assert (answer.model, answer.choices[0].finish_reason) == (model, "length")
    assert answer.choices[0].message.role == "assistant"
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens == len("[user:Hello?][assistant:")
    assert (usage.completion_tokens, usage.total_tokens) == (7, usage.prompt_tokens + 7)
    again = client.chat.completions.create(model=model, messages=HELLO, max_completion_tokens=7, temperature=0)
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.system_fingerprint == answer.system_fingerprint
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == 16  # whole pages of the prompt


def test_a_stream_says_the_same_and_its_usage_when_asked(client: openai.OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 30, "seed": 5}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == ([whole.choices[0].message.content], ["length"])
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    plain = list(client.chat.completions.create(**asked, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in plain)


def test_obfuscated_chunks_are_of_few_sizes(server: Server, model: str) -> None:
    body = {"model": model, "messages": HELLO, "max_tokens": 20, "stream": True}
    text = server.http.post("/v1/chat/completions", json={**body, "stream_options": {"include_obfuscation": True}}).text
    sizes = {len(line.encode()) % 64 for line in text.split("\n") if line.startswith("data: {")}
    assert len(sizes) == 1
    assert "obfuscation" not in server.http.post("/v1/chat/completions", json=body).text


def test_choices_are_those_of_the_seed_and_share_the_prompt(client: openai.OpenAI, model: str, server: Server) -> None:
    long: list[Any] = [{"role": "user", "content": "Tell me " * 20}]
    asked: dict[str, Any] = {"model": model, "messages": long, "max_tokens": 9, "seed": 11}
    before = len(server.log)
    answer = client.chat.completions.create(**asked, n=4)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len("[user:][assistant:") + 160, 36)
    lines = server.lines_with("cached=", f"request={answer._request_id}", count=4, after=before)
    assert sum("cached=176 new=2 " in line for line in lines) == 3  # of 178, the whole pages
    again = joined(client.chat.completions.create(**asked, n=4, stream=True), 4)
    assert again == (texts, ["length"] * 4)
    alone = client.chat.completions.create(**asked)
    assert alone.choices[0].message.content == texts[0]


def test_log_probabilities_have_bytes_and_make_up_the_text(client: openai.OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 25, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**asked, temperature=0)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    tokens = logprobs.content or []
    raw = b"".join(bytes(token.bytes or ()) for token in tokens)
    assert raw.decode(errors="replace") == whole.choices[0].message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert (token.top_logprobs[0].bytes, token.top_logprobs[0].logprob) == (token.bytes, token.logprob)
        assert token.logprob <= 0
    streamed = []
    for chunk in client.chat.completions.create(**asked, temperature=0, stream=True):
        for choice in chunk.choices:
            streamed += (choice.logprobs.content or []) if choice.logprobs else []
    assert [token.model_dump() for token in streamed] == [token.model_dump() for token in tokens]
    without = client.chat.completions.create(model=model, messages=HELLO, max_tokens=2, logprobs=True)
    assert without.choices[0].logprobs is not None
    assert [token.top_logprobs for token in without.choices[0].logprobs.content or []] == [[], []]


def test_parts_of_text_and_earlier_answers_are_taken_as_they_came(client: openai.OpenAI, model: str) -> None:
    parts: list[Any] = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    asked: dict[str, Any] = {"model": model, "max_tokens": 3, "temperature": 0}
    first = client.chat.completions.create(**asked, messages=[{"role": "developer", "content": parts}])
    same = client.chat.completions.create(**asked, messages=[{"role": "system", "content": "Hel\nlo"}])
    assert first.choices[0].message.content == same.choices[0].message.content
    answer: Any = first.choices[0].message.model_dump()
    more = client.chat.completions.create(**asked, messages=[*HELLO, answer, *HELLO])
    assert more.usage is not None
    assert more.usage.prompt_tokens > len("[user:Hello?][assistant:][user:Hello?][assistant:")


# -- sessions


def test_with_a_session_only_new_messages_are_sent(client: openai.OpenAI, model: str, session: str) -> None:
    asked: dict[str, Any] = {"model": model, "max_tokens": 8, "temperature": 0}
    said = cached = 0
    for number, text in enumerate(("One", "Two", "Three")):
        by_header = {"extra_headers": {"X-Session-ID": session}}
        how: dict[str, Any] = by_header if number == 1 else {"extra_body": {"session_id": session}}
        answer = client.chat.completions.create(**asked, messages=[{"role": "user", "content": text}], **how)
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        glue = f"[user:{text}][assistant:"
        assert usage.prompt_tokens == said + len(glue) + (1 if number else 0)  # the end of the answer before
        cached = usage.prompt_tokens_details.cached_tokens or 0
        assert cached in ((0,) if number == 0 else (said - 1, said))
        said = usage.total_tokens
    stream = client.chat.completions.create(
        **asked, messages=HELLO, stream=True, stream_options={"include_usage": True}, extra_body={"session_id": session}
    )
    last = list(stream)[-1]
    assert last.usage is not None
    assert last.usage.prompt_tokens > said


def test_b2_completions_of_token_ids_resume_on_the_session(client: openai.OpenAI, model: str, session: str) -> None:
    said = 0
    for number in range(3):
        prompt = [(number * 12 + index) % 200 for index in range(12)]
        answer = client.completions.create(
            model=model, prompt=prompt, max_tokens=6, temperature=0, extra_body={"session_id": session}
        )
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens == said + 12
        assert usage.prompt_tokens_details.cached_tokens in ((0,) if number == 0 else (said - 1, said))
        said = usage.total_tokens


def test_a_repeated_turn_is_answered_and_not_run_again(client: openai.OpenAI, model: str, session: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 5, "seed": 1}
    asked["extra_body"] = {"session_id": session, "turn": 0, "return_token_ids": True}
    first = client.chat.completions.create(**asked)
    again = client.chat.completions.create(**asked)
    assert again.choices == first.choices
    assert joined(client.chat.completions.create(**asked, stream=True))[0] == [first.choices[0].message.content]
    with pytest.raises(openai.ConflictError) as refused:
        client.chat.completions.create(**{**asked, "max_tokens": 6})
    assert (refused.value.param, refused.value.code) == ("turn", "turn_conflict")


def test_raw_text_goes_on_with_a_history(client: openai.OpenAI, model: str, session: str) -> None:
    asked: dict[str, Any] = {"model": model, "max_tokens": 4, "temperature": 0, "extra_body": {"session_id": session}}
    first = client.completions.create(**asked, prompt="Once upon")
    second = client.completions.create(**asked, prompt=" a time")
    assert second.usage is not None
    assert second.usage.prompt_tokens == len("Once upon") + 4 + len(" a time")
    whole = client.completions.create(model=model, prompt="Once upon", max_tokens=4, temperature=0)
    assert whole.choices[0].text == first.choices[0].text


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"extra_body": {"session_id": "a"}, "extra_headers": {"X-Session-ID": "b"}}, "session_id"),
        ({"extra_headers": {"X-Session-ID": "a b"}}, "X-Session-ID"),
        ({"extra_body": {"session_id": ""}}, "session_id"),
        ({"extra_body": {"session_id": "a"}, "n": 2}, "n"),
        ({"extra_body": {"turn": 0}}, "turn"),
        ({"extra_body": {"wait": True}}, "wait"),
    ],
)
def test_fields_of_sessions_go_together(client: openai.OpenAI, model: str, changed: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": model, "messages": HELLO, **changed})
    assert (refused.value.param or "").lower() == param.lower()


def test_a_session_that_is_not_open_is_not_found(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model=model, messages=HELLO, extra_body={"session_id": "nobody"})
    assert refused.value.code == "session_not_found"


def test_an_undone_turn_is_an_error_and_never_a_finish_reason(
    client: openai.OpenAI, model: str, session: str, server: Server
) -> None:
    asked: dict[str, Any] = {"model": model, "messages": HELLO, "temperature": 0}
    asked["extra_body"] = {"session_id": session, "ignore_eos": True}
    stream = client.chat.completions.create(**asked, stream=True)
    next(stream)
    assert server.http.post(f"/v1/sessions/{session}/interrupt", json={"keep": 0}).json()["interrupted"]
    with pytest.raises(openai.APIError) as undone:
        list(stream)
    assert undone.value.code == "aborted"
    stream = client.chat.completions.create(**asked, stream=True)
    next(stream)
    next(stream)
    assert server.http.post(f"/v1/sessions/{session}/interrupt", json={}).json()["interrupted"]
    assert joined(stream)[1] == ["stop"]
    assert server.http.get(f"/v1/sessions/{session}").json()["turns"] == 1


# -- refusals

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"tools": [TOOL]}, "tools", "unsupported_value"),
        ({"tool_choice": "auto"}, "tool_choice", "unsupported_value"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls", "unsupported_parameter"),
        ({"functions": [TOOL["function"]]}, "functions", "unsupported_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "unsupported_value"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio", "unsupported_parameter"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "unsupported_value"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_parameter"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "invalid_value"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content",
            "unsupported_value",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name", "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": "x", "mood": "y"}]}, "messages.0.mood", "unknown_parameter"),
        ({"model": "other"}, None, None),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", None),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logprobs": 1}, "logprobs", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"seed": -1}, "seed", None),
        ({"logit_bias": {"x": 1}}, "logit_bias", None),
        ({"logit_bias": {"258": 1}}, "logit_bias", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
    ],
)
def test_nothing_is_dropped_silently(
    server: Server, model: str, changed: dict[str, Any], param: str | None, code: str | None
) -> None:
    response = server.http.post("/v1/chat/completions", json={"model": model, "messages": HELLO, **changed})
    error = response.json()["error"]
    assert response.status_code == (404 if "model" in changed else 400), error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == (param or "model")
    if code is not None:
        assert error["code"] == code
        assert (param or "").split(".")[-1] in error["message"]


def test_what_has_no_effect_is_accepted_and_named(server: Server, model: str) -> None:
    nothing = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}
    accepted = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "verbosity": "low"}
    body = {"model": model, "messages": HELLO, "max_tokens": 1, "stop": None, "audio": None, **nothing, **accepted}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-ignored-parameters"] == "user, metadata, store, service_tier, verbosity"
    plain = server.http.post("/v1/chat/completions", json={"model": model, "messages": HELLO, "max_tokens": 1})
    assert "x-ignored-parameters" not in plain.headers


def test_what_nobody_knows_is_named_and_refused_by_a_strict_server(server: Server, model: str, tmp_path: Path) -> None:
    known = {"model": model, "messages": HELLO, "max_tokens": 1, "moderation": {"model": "x"}}
    body = {**known, "frobnicate": 1, "x\r\ny: z": 2, "best_of": 3}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-ignored-parameters"] == "moderation, frobnicate, x%0D%0Ay%3A%20z, best_of"
    with serving(tmp_path, "--strict") as strict:
        assert strict.http.post("/v1/chat/completions", json=known).status_code == 200
        for path, said in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "x"})):
            refused = strict.http.post(f"/v1/{path}", json={"model": model, **said, "frobnicate": 1})
            error = refused.json()["error"]
            assert (refused.status_code, error["param"], error["code"]) == (400, "frobnicate", "unknown_parameter")
