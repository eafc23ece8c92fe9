"""Both ends and HTTP between them in one process, so that steps can be counted: what a disconnect costs, what a pool holds."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event, Semaphore
from typing import Any, TypeAlias

import httpx
import msgspec
import pytest
import zmq
from starlette.types import ASGIApp, Message
from tests.api.test_link import CARD, GUARD_S, EngineHere
from tests.support.text import tiny_tokenizer
from tests.support.ticks import tick

from sojourn.api import wire
from sojourn.api.app import make_app
from sojourn.api.auth import Keys
from sojourn.api.settings import FrontSettings, FrontWorld
from sojourn.backends.protocol import Batch, BatchOutput

Json: TypeAlias = dict[str, Any]
TOKENIZER = tiny_tokenizer()
CARD_WITH_TEXT = msgspec.structs.replace(
    CARD, tokenizer_json=TOKENIZER._inner.to_str(), text_json=TOKENIZER.config.to_json()
)
PAGE, CONTEXT = 16, 512


class SteppedEngine(EngineHere):
    """Each step waits for a permit."""

    def __init__(self, address: str, *, num_pages: int = 200, depth: int = 0) -> None:
        super().__init__(address, card=CARD_WITH_TEXT, num_pages=num_pages, depth=depth)
        self.permits = Semaphore(0)
        self.at_gate, self.heard_end = Event(), Event()
        self.ran = 0
        run, obey = self.world.backend.step, self.server._obey

        def step(batch: Batch) -> BatchOutput:
            self.at_gate.set()
            assert self.permits.acquire(timeout=GUARD_S)
            self.ran += 1
            return run(batch)

        def hear(front: bytes, ask: wire.Ask, router: "zmq.Socket[bytes]") -> None:
            obey(front, ask, router)
            if isinstance(ask.command, wire.End):
                self.heard_end.set()

        self.world.backend.step = step  # type: ignore[method-assign]
        self.server._obey = hear  # type: ignore[method-assign]

    async def step(self) -> None:
        """One more, and on to the next gate."""
        await asyncio.to_thread(self.at_gate.wait, GUARD_S)
        self.at_gate.clear()
        self.permits.release()
        await asyncio.to_thread(self.at_gate.wait, GUARD_S)


class Caller:
    """An HTTP client of the application without a server between them, so that it goes away exactly when it says so."""

    def __init__(self, app: ASGIApp, path: str, body: Json) -> None:
        self._app = app
        self._body = json.dumps(body).encode()
        self._scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
            "server": ("here", 80), "client": ("here", 1), "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        self._is_sent = False
        self._gone = asyncio.Event()
        self.received = b""
        self.has_delta = asyncio.Event()

    async def call(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> Json:
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.received += message.get("body", b"")
        if b'"delta"' in self.received:
            self.has_delta.set()


Tell = Callable[[httpx.AsyncClient, ASGIApp], Awaitable[None]]


def story(tmp_path: Path, engine: EngineHere, address: str, tell: Tell) -> None:
    world = FrontWorld(time.monotonic, time.time, str, iter(map(str, range(10**6))).__next__, lambda: 1)
    front, app = make_app(FrontSettings(address), world, Keys({}))

    async def run() -> None:
        async with asyncio.timeout(GUARD_S):
            link = asyncio.create_task(front.link.run())
            await front.link.up.wait()
            try:
                async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
                    await tell(http, app)
            finally:
                link.cancel()
                await asyncio.gather(link, return_exceptions=True)

    try:
        asyncio.run(run())
    finally:
        if isinstance(engine, SteppedEngine):
            engine.permits.release(10**6)
        engine.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_prompt", [5, 300])
@pytest.mark.parametrize("depth", [0, 1])
def test_b10_who_goes_away_is_rid_of_within_two_steps(
    tmp_path: Path, depth: int, num_prompt: int, stream: bool
) -> None:
    """From when the server knows of it: the step that runs, and with overlap the one that was planned behind it.

    300 tokens are 19 chunks, so that is in the middle of the prompt.
    """
    address = f"ipc://{tmp_path}/engine"
    engine = SteppedEngine(address, depth=depth)
    has_deltas = stream and num_prompt < PAGE

    async def tell(http: httpx.AsyncClient, app: ASGIApp) -> None:
        session = (await http.post("/v1/sessions", json={})).json()["id"]
        for _ in range(20):
            engine.heard_end.clear()
            engine.at_gate.clear()
            body = {"token_ids": [7] * num_prompt, "max_tokens": 100, "ignore_eos": True, "stream": stream}
            caller = Caller(app, f"/v1/sessions/{session}/turns", body)
            running = asyncio.create_task(caller.call())
            for _ in range(6):
                await engine.step()
            if has_deltas:
                await caller.has_delta.wait()
            caller.leave()
            await running
            await asyncio.to_thread(engine.heard_end.wait, GUARD_S)
            left_at = engine.ran
            engine.permits.release(1000)
            info = (await http.get(f"/v1/sessions/{session}")).json()
            assert (info["state"], info["tokens"]) == ("idle", 0)
            while (await http.post("/v1/pools/flush")).status_code != 200:  # until no step is in flight
                pass
            assert engine.ran - left_at <= 1 + depth <= 2
            assert caller.has_delta.is_set() == has_deltas
            while engine.permits.acquire(blocking=False):
                pass
        counted = (await http.get("/metrics")).text
        assert 'sojourn_requests_aborted_total{reason="disconnect"} 20.0' in counted

    story(tmp_path, engine, address, tell)


def test_probes_run_one_after_the_other(tmp_path: Path) -> None:
    """They need no key, and are not counted against anyone's bound."""
    address = f"ipc://{tmp_path}/engine"
    engine = SteppedEngine(address)

    async def tell(http: httpx.AsyncClient, app: ASGIApp) -> None:
        paths = ["/health?deep=1", "/health_generate"] * 3
        probes = [asyncio.create_task(http.get(path)) for path in paths]
        for number in range(len(paths)):
            await asyncio.to_thread(engine.at_gate.wait, GUARD_S)
            engine.at_gate.clear()
            await http.get("/live")  # all have been asked by now
            told = engine.thread.call(lambda service: engine.world.world.loop.scheduler.statistics())
            engine.permits.release()
            statistics = await asyncio.wrap_future(told)
            assert statistics.running + statistics.waiting <= 1, number
        assert [(await probe).status_code for probe in probes] == [200] * len(paths)

    story(tmp_path, engine, address, tell)


@pytest.mark.parametrize("kinds", [(True, False), (False, True), (False, False), (True, True)])
def test_of_two_sessions_of_one_name_that_are_opened_at_once_one_is(tmp_path: Path, kinds: tuple[bool, bool]) -> None:
    """A tree and an append-only one are kept in different places."""
    address = f"ipc://{tmp_path}/engine"
    engine = EngineHere(address, card=CARD_WITH_TEXT)

    async def tell(http: httpx.AsyncClient, app: ASGIApp) -> None:
        with engine.held():
            asked = [{"capacity_of_str_len": 1, "session_id": "same", "streaming": kind} for kind in kinds]
            opening = [asyncio.create_task(http.post("/open_session", json=body)) for body in asked]
            for _ in range(100):
                await tick()
        assert sorted([(await answer).status_code for answer in opening]) == [200, 400]
        assert (await http.post("/close_session", json={"session_id": "same"})).status_code == 200
        generate = {"input_ids": [3], "session_params": {"id": "same"}}
        assert "does not exist" in (await http.post("/generate", json=generate)).text

    story(tmp_path, engine, address, tell)


@pytest.mark.parametrize("count", [1, 8])
def test_b14_the_bound_of_a_pool_is_exact_and_told(tmp_path: Path, count: int) -> None:
    """Of a pool that is smaller than the context; a short request right behind is answered."""
    address, pages = f"ipc://{tmp_path}/engine", 20
    engine = EngineHere(address, card=CARD_WITH_TEXT, num_pages=pages)
    most = pages * PAGE - count + 1  # the KV of the last token is never computed

    async def tell(http: httpx.AsyncClient, app: ASGIApp) -> None:
        around = {*range(most - 2, most + 3), *range(pages * PAGE - 1, pages * PAGE + 2)}
        for length in sorted(around | {(pages - 2) * PAGE, (pages - 1) * PAGE, (pages + 1) * PAGE}):
            session = (await http.post("/v1/sessions", json={})).json()["id"]
            body = {"token_ids": [3] * length, "max_tokens": count, "ignore_eos": True, "temperature": 0}
            answer, short = await asyncio.gather(
                http.post(f"/v1/sessions/{session}/turns", json=body),
                http.post("/generate", json={"input_ids": [5], "sampling_params": {"max_new_tokens": 2}}),
            )
            assert short.status_code == 200
            assert (await http.delete(f"/v1/sessions/{session}")).status_code == 200
            if length <= most:
                assert answer.json()["usage"]["completion_tokens"] == count, answer.text
                continue
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "capacity_exceeded", "token_ids")
            assert str(length) in error["message"]
            assert f"{pages}" in error["message"]

    story(tmp_path, engine, address, tell)
