"""Server-sent events without a server: quiet streams are kept alive, clients that leave end them, closing happens once."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from sojourn.api.streaming import DONE, KEEP_ALIVE, ClientGoneError, EventStream, event_of, while_connected

Send = Callable[[Any], Awaitable[None]]


class Wire:
    """What a server hands to an application, and what it was sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.gone = asyncio.Event()
        self.closed = 0
        self.changed = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message.get("body", b""))
        self.changed.set()

    async def close(self) -> None:
        self.closed += 1

    def stream(self, events: AsyncIterator[bytes], keep_alive_s: float = 60.0) -> EventStream:
        return EventStream(events, self.close, keep_alive_s=keep_alive_s, headers={"x-request-id": "r"})


def test_a_quiet_stream_is_kept_alive() -> None:
    async def story() -> None:
        wire, go_on = Wire(), asyncio.Event()

        async def events() -> AsyncIterator[bytes]:
            await go_on.wait()
            yield b"data: 1\n\n"
            yield DONE

        answer = asyncio.ensure_future(wire.stream(events(), 0.001)({"type": "http"}, wire.receive, wire.send))
        while wire.sent.count(KEEP_ALIVE) < 2:
            wire.changed.clear()
            await wire.changed.wait()
        go_on.set()
        await answer
        assert [part for part in wire.sent if part != KEEP_ALIVE] == [b"", b"data: 1\n\n", DONE, b""]
        assert wire.closed == 1

    asyncio.run(story())


def test_a_client_that_leaves_ends_the_stream() -> None:
    async def story() -> None:
        wire, was_cancelled = Wire(), asyncio.Event()

        async def events() -> AsyncIterator[bytes]:
            try:
                yield b"data: 1\n\n"
                await asyncio.Event().wait()
            finally:
                was_cancelled.set()

        answer = asyncio.ensure_future(wire.stream(events())({"type": "http"}, wire.receive, wire.send))
        while b"data: 1\n\n" not in wire.sent:
            wire.changed.clear()
            await wire.changed.wait()
        wire.gone.set()
        await answer
        assert was_cancelled.is_set()
        assert wire.closed == 1

    asyncio.run(story())


def test_work_is_cancelled_when_the_client_leaves() -> None:
    class Request:
        def __init__(self, wire: Wire) -> None:
            self.receive = wire.receive

    async def story() -> None:
        wire, was_cancelled = Wire(), asyncio.Event()

        async def work() -> int:
            try:
                await asyncio.Event().wait()
            finally:
                was_cancelled.set()
            return 0

        async def quick() -> int:
            return 7

        request: Any = Request(wire)
        assert await while_connected(request, quick()) == 7
        asyncio.get_running_loop().call_soon(wire.gone.set)
        with pytest.raises(ClientGoneError):
            await while_connected(request, work())
        assert was_cancelled.is_set()

    asyncio.run(story())


def test_an_event_is_one_line_to_whoever_splits_by_more_than_line_feeds() -> None:
    text = "".join(map(chr, (*range(0x100), 0x2028, 0x2029, 0x1F600)))
    first, *rest = event_of({"text": text}).decode().splitlines()
    assert rest == [""]
    assert json.loads(first.removeprefix("data: ")) == {"text": text}
