"""Answers that take a while: a client that goes away ends them, and a quiet stream is kept alive by comments.

Knows ASGI and server-sent events; knows no turn.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
# Ends of lines to Unicode, though neither to JSON nor to server-sent events. Clients that split by them (httpx's `iter_lines`
# does) would cut an event in two. Within JSON they occur in strings only.
_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")
# For the OpenAPI document of a route that answers with events where the body asks for them.
EVENT_SCHEMA: dict[str, object] = {
    "type": "object",
    "description": "one event; its data is an object as JSON, at the end [DONE]",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
STREAMED: dict[int | str, dict[str, object]] = {200: {"content": {"text/event-stream": {"schema": EVENT_SCHEMA}}}}


def json_of(fields: object) -> bytes:
    """In one line, by whatever a client takes for a line."""
    data = msgspec.json.encode(fields)
    for end, escape in _LINE_ENDS:
        data = data.replace(end, escape)
    return data


def event_of(fields: object) -> bytes:
    return b"data: " + json_of(fields) + b"\n\n"


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to answer."""


class NoAnswer(Response):
    """What one who has gone is sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


async def while_connected(request: Request, work: Coroutine[object, object, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        await _cancel(gone)
        await _cancel(task)


async def _cancel(task: "asyncio.Future[T]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class FileStream(StreamingResponse):
    """A file that is made while it is sent, on another thread. `close` is called at the end, however it came."""

    def __init__(
        self, chunks: Iterator[bytes], close: Callable[[], Awaitable[None]], *, media_type: str, headers: dict[str, str]
    ) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._close()


class EventStream(Response):
    """Server-sent events. `events` is iterated in a task that is cancelled when the client goes away; `close` is called
    at the end, however it came."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        *,
        keep_alive_s: float,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._keep_alive_s = keep_alive_s
        self._was_quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks: set[asyncio.Future[None]] = set()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            tasks = {
                asyncio.ensure_future(self._send_all(send)),
                asyncio.ensure_future(self._keep_alive(send)),
                asyncio.ensure_future(_until_gone(receive)),
            }
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                await _cancel(task)
            await self._close()

    async def _send_all(self, send: Send) -> None:
        async for event in self._events:
            self._was_quiet = False
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        while True:
            self._was_quiet = True
            await asyncio.sleep(self._keep_alive_s)
            if self._was_quiet:
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
