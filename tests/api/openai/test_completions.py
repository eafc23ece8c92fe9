"""Completions through the official client, and the rows of the table of scenarios that concern these surfaces."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.completion_choice import Logprobs
from tests.support.model_files import TOKENS
from tests.support.server import Server, serving

from sojourn.api.off_loop import LONG, SCORED

pytestmark = pytest.mark.http_scenario
VOCAB = 258


def ids(count: int, salt: int = 0) -> list[int]:
    return [(salt * 31 + index * 7 + 3) % (VOCAB - 1) for index in range(count)]


def spelled(text: str) -> list[int]:
    """Its token ids: this model has one for every byte."""
    return [TOKENS.index("\u0120" if character == " " else character) for character in text]


def greedy(client: openai.OpenAI, model: str, prompt: object, count: int, **more: object) -> Completion:
    """Greedy answers of `count` tokens that say their ids."""
    asked: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": count, "temperature": 0, **more}
    asked["extra_body"] = {"return_token_ids": True, "ignore_eos": True, **asked.get("extra_body", {})}
    answer: Completion = client.completions.create(**asked)
    return answer


def token_ids(answer: Completion) -> list[int]:
    return list(answer.choices[0].model_dump()["token_ids"])


def prompts_cached(answer: Completion) -> int:
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def test_every_kind_of_prompt_and_the_order_of_choices(client: openai.OpenAI, model: str) -> None:
    one = greedy(client, model, "ab", 5)
    Completion.model_validate(one.model_dump(), strict=True)
    assert one.choices[0].finish_reason == "length"
    texts = greedy(client, model, ["ab", "xyz"], 5, n=2)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in texts.choices[:2]] == [one.choices[0].text] * 2
    lists = greedy(client, model, [ids(3), ids(40, 1)], 5)
    for choice, prompt in zip(lists.choices, (ids(3), ids(40, 1)), strict=True):
        assert choice.text == greedy(client, model, prompt, 5).choices[0].text
    assert lists.usage is not None
    assert (lists.usage.prompt_tokens, lists.usage.completion_tokens) == (43, 10)
    assert client.completions.create(model=model, prompt="ab").usage.completion_tokens <= 16  # type: ignore[union-attr]


def test_echo_begins_with_the_prompt(client: openai.OpenAI, model: str) -> None:
    plain = greedy(client, model, ["Hello", "you"], 4)
    echoed = greedy(client, model, ["Hello", "you"], 4, echo=True)
    assert [c.text for c in echoed.choices] == ["Hello" + plain.choices[0].text, "you" + plain.choices[1].text]
    streamed = ["", ""]
    for chunk in client.completions.create(
        model=model, prompt=["Hello", "you"], max_tokens=4, temperature=0, echo=True, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [c.text for c in echoed.choices]


def test_log_probabilities_line_up_with_the_text(client: openai.OpenAI, model: str) -> None:
    answer = greedy(client, model, "Hi", 30, logprobs=2, logit_bias={str(i): 20.0 for i in range(30, 90)})
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or ()) == 30
    for token, offset, top in zip(logprobs.tokens, logprobs.text_offset, logprobs.top_logprobs, strict=True):
        assert choice.text[offset : offset + len(token)] == token
        assert token in top
        assert len(top) in (2, 3)
    cut = choice.text[20:22]
    stopped = greedy(client, model, "Hi", 30, logprobs=0, logit_bias={str(i): 20.0 for i in range(30, 90)}, stop=cut)
    assert stopped.choices[0].text == choice.text[: choice.text.find(cut)]
    assert stopped.choices[0].logprobs is not None
    assert "".join(stopped.choices[0].logprobs.tokens or ()) == stopped.choices[0].text


def echoed_logprobs(answer: Completion, index: int = 0) -> Logprobs:
    logprobs = answer.choices[index].logprobs
    assert logprobs is not None
    assert logprobs.text_offset is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or ()) == len(logprobs.text_offset)
    return logprobs


@pytest.mark.parametrize("more", [0, 1, 12])
def test_echo_tells_how_likely_the_prompt_is(client: openai.OpenAI, model: str, more: int) -> None:
    """As evaluations use it: the first token has no log-probability, offsets are those of the whole text."""
    text = "The quick brown fox jumps over the lazy dog."
    readable = {str(token): 20.0 for token in range(30, 90)}  # the output, too
    answer = greedy(client, model, text, more, echo=True, logprobs=2, logit_bias=readable)
    choice, logprobs = answer.choices[0], echoed_logprobs(answer)
    assert choice.text.startswith(text)
    assert len(logprobs.tokens or ()) == len(text) + more
    assert (logprobs.token_logprobs or [0])[0] is None
    assert (logprobs.top_logprobs or [{}])[0] is None
    assert all(value is not None and value <= 0 for value in (logprobs.token_logprobs or ())[1:])
    for token, offset in zip(logprobs.tokens or (), logprobs.text_offset or (), strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset : offset + len(token)] == token
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(text), more)
    assert len(token_ids(answer)) == more
    by_ids = greedy(client, model, spelled(text), more, echo=True, logprobs=2, logit_bias=readable)
    assert by_ids.choices[0].logprobs == choice.logprobs


def test_what_was_generated_is_as_likely_when_it_is_a_prompt(client: openai.OpenAI, model: str) -> None:
    prompt = ids(70, 21)
    said = greedy(client, model, prompt, 10, logprobs=3)
    again = greedy(client, model, [*prompt, *token_ids(said)], 0, echo=True, logprobs=3)
    output, told = said.choices[0].logprobs, echoed_logprobs(again)
    assert output is not None
    assert (told.token_logprobs or [])[70:] == output.token_logprobs
    assert (told.top_logprobs or [])[70:] == output.top_logprobs


def test_choices_and_prompts_have_their_echoes(client: openai.OpenAI, model: str) -> None:
    alone = [greedy(client, model, prompt, 3, echo=True, logprobs=0) for prompt in ("Hello", "you")]
    both = greedy(client, model, ["Hello", "you"], 3, echo=True, logprobs=0, n=2)
    assert [choice.text for choice in both.choices] == [alone[i].choices[0].text for i in (0, 0, 1, 1)]
    for index, choice in enumerate(both.choices):
        assert choice.logprobs == alone[index // 2].choices[0].logprobs
        assert echoed_logprobs(both, index).top_logprobs is None


def test_streamed_echoes_are_the_same(client: openai.OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": ["Hello", "you"], "temperature": 0, "max_tokens": 8, "n": 2}
    asked |= {"echo": True, "logprobs": 1, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(**asked)
    texts, tokens, offsets = [""] * 4, [[] for _ in range(4)], [[] for _ in range(4)]  # type: ignore[var-annotated]
    for chunk in client.completions.create(stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            assert choice.logprobs is not None
            tokens[choice.index] += zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
            offsets[choice.index] += choice.logprobs.text_offset
    for choice in whole.choices:
        logprobs = echoed_logprobs(whole, choice.index)
        assert texts[choice.index] == choice.text
        assert tokens[choice.index] == list(zip(logprobs.tokens or (), logprobs.token_logprobs or (), strict=True))
        assert offsets[choice.index] == logprobs.text_offset


@pytest.mark.parametrize("stream", [True, False])
def test_a_long_prompt_is_told_off_the_loop_and_told_the_same(client: openai.OpenAI, model: str, stream: bool) -> None:
    text = "The quick brown fox. " * (2 * LONG // SCORED // 20)
    asked: dict[str, Any] = {"model": model, "prompt": text, "temperature": 0, "max_tokens": 3, "stream": stream}
    answer = client.completions.create(**asked, echo=True, logprobs=1)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
    assert "".join(choice.text for choice in choices).startswith(text)
    assert tokens[: len(text)] == list(text)
    assert len(tokens) == len(text) + 3


def test_a_session_echoes_what_is_new(client: openai.OpenAI, model: str, session: str) -> None:
    """With its history before it: what is new is as likely as in the whole prompt."""
    history: list[int] = []
    for text in ("Once upon a time there was", " a mouse. ", "!"):
        new = spelled(text)
        answer = greedy(client, model, new, 5, echo=True, logprobs=1, extra_body={"session_id": session})
        alone = greedy(client, model, [*history, *new], 5, echo=True, logprobs=1)
        assert answer.choices[0].text.startswith(text)
        assert echoed_logprobs(answer).token_logprobs == (echoed_logprobs(alone).token_logprobs or [])[len(history) :]
        assert prompts_cached(answer) == max(0, len(history) - 1)
        history += [*new, *token_ids(answer)]


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"echo": True, "extra_body": {"session_id": "any"}}])
def test_nothing_is_generated_only_with_an_echo(client: openai.OpenAI, model: str, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=model, prompt="x", max_tokens=0, **more)
    assert refused.value.param == "max_tokens"


def test_kv_is_shared_within_a_salt_only(client: openai.OpenAI, model: str) -> None:
    prompt = ids(64, 77)
    first = greedy(client, model, prompt, 2)
    assert prompts_cached(greedy(client, model, prompt, 2)) == 48
    salted = greedy(client, model, prompt, 2, extra_body={"cache_salt": "mine"})
    assert prompts_cached(salted) == 0
    assert prompts_cached(greedy(client, model, prompt, 2, extra_body={"cache_salt": "mine"})) == 48
    assert token_ids(salted) == token_ids(first)


@pytest.mark.parametrize("field", ["best_of", "suffix"])
def test_what_is_not_supported_says_so(client: openai.OpenAI, model: str, field: str) -> None:
    value: Any = 2 if field == "best_of" else "x"
    with pytest.raises(openai.BadRequestError, match="does not support") as refused:
        client.completions.create(**{"model": model, "prompt": "x", field: value})
    assert (refused.value.param, refused.value.code) == (field, "unsupported_parameter")


# -- scenarios


@pytest.fixture(scope="module")
def small(models: Path) -> Iterator[Server]:
    with serving(models, "--context", "512", "--pool-tokens", "2048", "--chunk", "64") as server:
        yield server


def test_b1_a_turn_that_does_not_fit_changes_nothing(small: Server) -> None:
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        session = {"session_id": small.http.post("/v1/sessions", json={}).json()["id"]}
        first = greedy(client, model, ids(16), 8, extra_body=session)
        with pytest.raises(openai.BadRequestError, match=r"624 tokens.*512") as refused:
            greedy(client, model, ids(600), 8, extra_body=session)
        assert (refused.value.param, refused.value.code) == ("prompt", "context_length_exceeded")
        third = greedy(client, model, ids(16, 3), 8, extra_body=session)
        assert first.usage is not None
        assert third.usage is not None
        assert third.usage.prompt_tokens == first.usage.total_tokens + 16
        assert prompts_cached(third) >= first.usage.total_tokens - 1
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x" * 600}])
        assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")


def test_b10_a_stream_that_is_closed_ends_its_request(client: openai.OpenAI, model: str, server: Server) -> None:
    def aborted() -> float:
        lines = server.http.get("/metrics").text.splitlines()
        name = 'sojourn_requests_aborted_total{reason="disconnect"}'
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)

    before = aborted()
    asked: dict[str, Any] = {"model": model, "prompt": "Go on", "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    for _ in range(20):
        stream = client.completions.create(**asked, stream=True)
        for _ in range(3):
            next(stream)
        stream.close()
    for _ in range(2000):
        if aborted() == before + 20:
            break
    assert aborted() == before + 20


def test_b11_a_stop_string_at_every_offset(client: openai.OpenAI, model: str) -> None:
    whole = greedy(client, model, "Stop", 40)
    text, said = whole.choices[0].text, token_ids(whole)
    for offset in range(len(text) - 1):
        stop = text[offset : offset + 2]
        answer = greedy(client, model, "Stop", 40, stop=stop)
        choice, stopped = answer.choices[0], token_ids(answer)
        assert choice.text == text[: text.find(stop)]
        assert choice.finish_reason == "stop"
        assert stopped == said[: len(stopped)]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(stopped)
        parts = client.completions.create(
            model=model, prompt="Stop", max_tokens=40, temperature=0, stop=[stop, "never"], stream=True
        )
        assert "".join(c.text for chunk in parts for c in chunk.choices) == choice.text


BAD_IDS = [[-1], [VOCAB], [2**31], [1e20], ["x", 1], [1, None], None, [], [[]], [[1], [VOCAB]], [True], {"a": 1}, 3]


@pytest.mark.parametrize("prompt", BAD_IDS, ids=repr)
def test_b12_what_is_no_token_is_refused_by_name(server: Server, model: str, prompt: object) -> None:
    response = server.http.post("/v1/completions", json={"model": model, "prompt": prompt})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt"), response.text


@pytest.mark.parametrize("key", ["-1", "258", "2147483648", "1e20", "x", ""])
def test_b12_a_bias_of_no_token_is_refused_by_name(server: Server, model: str, key: str) -> None:
    response = server.http.post("/v1/completions", json={"model": model, "prompt": "x", "logit_bias": {key: 1}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logit_bias"), response.text


def test_b13_each_turn_and_each_choice_has_its_own_parameters(client: openai.OpenAI, model: str, session: str) -> None:
    for number, count in enumerate((4, 1, 9)):
        answer = client.completions.create(
            model=model,
            prompt=ids(5, number),
            max_tokens=count,
            temperature=number / 2,
            seed=number,
            logprobs=number or None,
            extra_body={"session_id": session, "ignore_eos": True},
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == count
        assert (answer.choices[0].logprobs is None) == (number == 0)
    for n in (4, 1, 9):
        assert len(client.completions.create(model=model, prompt=ids(5), n=n, max_tokens=2).choices) == n


def test_b17_cold_warm_stopped_aborted_in_a_session_or_not_the_tokens_are_the_same(
    client: openai.OpenAI, model: str, server: Server
) -> None:
    for number in range(50):
        prompt = ids(20 + number, number)
        cold = token_ids(greedy(client, model, prompt, 8))
        assert token_ids(greedy(client, model, prompt, 8)) == cold
        greedy(client, model, prompt, 8, stop=["a", "\ufffd"])
        stream = greedy(client, model, prompt, 500, stream=True)
        next(iter(stream))
        stream.close()  # type: ignore[attr-defined]
        assert token_ids(greedy(client, model, prompt, 8)) == cold
        name = server.http.post("/v1/sessions", json={}).json()["id"]
        body = {"session_id": name}
        half = len(prompt) // 2
        assert token_ids(greedy(client, model, prompt, 8, extra_body=body)) == cold
        assert server.http.post(f"/v1/sessions/{name}/rewind", json={"length": half}).status_code == 200
        assert token_ids(greedy(client, model, prompt[half:], 8, extra_body=body)) == cold
        server.http.delete(f"/v1/sessions/{name}")


def test_b18_characters_of_many_bytes_come_whole(client: openai.OpenAI, model: str, server: Server) -> None:
    """The model may say nothing but the four bytes of one emoji, in any order."""
    body: dict[str, Any] = {"model": model, "prompt": "x", "max_tokens": 1500, "temperature": 50.0, "seed": 4}
    tokens = byte_tokens("😀")
    body |= {"logit_bias": {str(token): 100.0 for token in tokens}, "top_k": len(tokens)}
    whole = client.post("/completions", body=body, cast_to=Completion)
    text = whole.choices[0].text
    assert "😀" in text
    with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        lines = [line.removeprefix(b"data: ") for line in b"".join(response.iter_raw()).split(b"\n\n")]
    deltas = [json.loads(line.decode("utf-8"))["choices"][0]["text"] for line in lines if line.startswith(b"{")]
    assert "".join(deltas) == text
    assert len(deltas) > 100  # nothing waits for the end


def byte_tokens(text: str) -> list[int]:
    """The tiny model's tokens of these bytes: its vocabulary begins with the sorted alphabet of bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    order = {byte: byte for byte in printable} | {byte: 0x100 + index for index, byte in enumerate(rest)}
    alphabet = sorted(order, key=lambda byte: order[byte])
    return sorted({alphabet.index(byte) for byte in text.encode()})


ABSURD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"max_tokens": "8"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"min_p": 1}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a"] * 10_000}, "stop"),
    ({"stop": 3}, "stop"),
    ({"seed": 2**64}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 128, "prompt": ["a", "b"]}, "n"),
    ({"logprobs": 21}, "logprobs"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"stream": "yes"}, "stream"),
]


@pytest.mark.parametrize(("absurd", "param"), ABSURD, ids=lambda value: repr(value)[:40])
def test_b19_absurd_parameters_are_refused_by_name(
    server: Server, model: str, absurd: dict[str, Any], param: str
) -> None:
    body = json.dumps({"model": model, "prompt": "x", **absurd})
    response = server.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert (response.json()["error"]["param"] or "").split(".")[0] == param, response.text


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_b19_missing_parameters_are_named(server: Server, missing: str) -> None:
    body = {"model": "tiny-llama", "prompt": "x"}
    del body[missing]
    error = server.http.post("/v1/completions", json=body).json()["error"]
    assert (error["param"], error["code"]) == (missing, "missing_parameter")
