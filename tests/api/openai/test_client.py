"""What the official client does by itself: errors by status, retries, requests that are awaited, request ids."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.support.server import Server, serving

pytestmark = pytest.mark.http_scenario
HELLO: list[Any] = [{"role": "user", "content": "Hello?"}]


class Flaky(httpx.HTTPTransport):
    """Counts requests; the first `failures` of them break before they are sent."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.sent = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent += 1
        if self.sent <= self.failures:
            raise httpx.ConnectError("the connection broke", request=request)
        return super().handle_request(request)


def over(server: Server, transport: httpx.HTTPTransport) -> openai.OpenAI:
    """The client with its own retries."""
    http = httpx.Client(transport=transport)
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http)


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    listed = client.models.list()
    assert [model.object for model in listed.data] == ["model"]
    name = listed.data[0].id
    assert client.models.retrieve(name) == listed.data[0]
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("nobody/knows")
    assert (refused.value.param, refused.value.code) == ("model", "model_not_found")


def test_a_broken_connection_is_tried_again(server: Server, model: str, session: str) -> None:
    transport = Flaky(failures=2)
    with over(server, transport) as client:
        answer = client.chat.completions.create(
            model=model, messages=HELLO, max_tokens=3, extra_body={"session_id": session, "turn": 0}
        )
    assert transport.sent == 3
    assert answer.choices[0].finish_reason == "length"
    assert server.http.get(f"/v1/sessions/{session}").json()["turns"] == 1


def test_a_busy_session_is_not_tried_again_unless_it_is_to_wait(server: Server, model: str, session: str) -> None:
    transport = Flaky()
    with over(server, transport) as client:
        asked: dict[str, Any] = {"model": model, "messages": HELLO}
        own = {"session_id": session, "ignore_eos": True}
        running = client.chat.completions.create(**asked, stream=True, extra_body=own)
        next(running)
        with pytest.raises(openai.ConflictError) as refused:
            client.chat.completions.create(**asked, extra_body=own)
        assert transport.sent == 2  # x-should-retry: false
        assert refused.value.code == "session_busy"
        assert refused.value.request_id
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(
                client.chat.completions.create(**asked, max_tokens=2, extra_body={**own, "wait": True})
            )
        )
        waiting.start()
        running.close()
        waiting.join(60)
    assert [answer.choices[0].finish_reason for answer in answers] == ["length"]


def test_what_the_client_got_wrong_is_not_tried_again(server: Server, model: str) -> None:
    transport = Flaky()
    with over(server, transport) as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=model, messages=HELLO, temperature=-1)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")
    assert transport.sent == 2


def test_a_request_id_is_exact_and_not_used_twice(client: openai.OpenAI, model: str) -> None:
    named = {"X-Request-ID": "my-request"}
    running = client.completions.create(
        model=model, prompt="x", max_tokens=3000, stream=True, extra_headers=named, extra_body={"ignore_eos": True}
    )
    assert next(running).id == "cmpl-my-request"
    with pytest.raises(openai.ConflictError) as refused:
        client.completions.create(model=model, prompt="x", extra_headers=named)
    assert refused.value.code == "duplicate_request"
    running.close()


def test_who_goes_away_leaves_no_choice_running(client: openai.OpenAI, model: str, server: Server) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": ["a", "b"], "n": 3, "max_tokens": 4000}
    stream = client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
    for _ in range(12):
        next(stream)
    stream.close()
    body = {**asked, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/v1/completions", json=body, timeout=httpx.Timeout(60, read=0.2))
    for _ in range(2000):
        pools = server.http.get("/v1/pools").json()["pools"]
        if all(pool["running"] == 0 for pool in pools):
            break
    assert [pool["running"] for pool in pools] == [0]


def test_requests_that_are_awaited(server: Server, model: str) -> None:
    async def ask() -> tuple[list[str | None], str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            asked: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 12, "temperature": 0}
            answers = await asyncio.gather(*(client.chat.completions.create(**asked) for _ in range(8)))
            stream = await client.chat.completions.create(**asked, stream=True)
            parts = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
            return [answer.choices[0].message.content for answer in answers], "".join(parts)

    texts, streamed = asyncio.run(ask())
    assert set(texts) == {streamed}


def test_an_engine_that_dies_is_an_error_in_the_stream_and_then_a_retry(models: Path) -> None:
    with serving(models, "--context", "512", "--pool-tokens", "1024") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=50) as client:
            model = client.models.list().data[0].id
            before = client.completions.create(model=model, prompt="Hello", max_tokens=5, temperature=0)
            stream = client.completions.create(
                model=model, prompt="x", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
            )
            next(stream)
            server.kill("engine")
            with pytest.raises(openai.APIError) as died:
                list(stream)
            assert died.value.code == "engine_unavailable"
            after = client.completions.create(model=model, prompt="Hello", max_tokens=5, temperature=0)
        assert after.choices[0].text == before.choices[0].text
