"""The client that awaits: the twin of `sync.py`, call for call.

async with AsyncClient("http://127.0.0.1:8000") as client, await client.open_session() as session:
    async with session.stream("Hello") as stream:
        async for delta in stream:
            print(delta.text, end="")
    print((await session.turn("And more?")).usage)
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, Unpack

import httpx

from sojourn.client.models import (
    ApiError,
    Closed,
    ConnectionFailedError,
    Delta,
    Json,
    SessionInfo,
    SojournClientError,
    Started,
    Turn,
)
from sojourn.client.protocol import (
    Call,
    EventReader,
    TurnOptions,
    content_of,
    raise_refusal,
    session_path,
    should_repeat,
    whose,
)


class AsyncStream:
    """A running turn. Iterate it; `started` is set with the first delta, `turn` after the last."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._reader = EventReader()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            async for line in self._response.aiter_lines():
                delta = self._reader.read(line)
                if delta is not None:
                    yield delta
        except httpx.TransportError as error:
            raise ConnectionFailedError(f"the connection broke: {error}") from error

    @property
    def started(self) -> Started | None:
        """None: nothing has come yet, or the turn stood already and is told again."""
        return self._reader.started

    @property
    def turn(self) -> Turn:
        if self._reader.turn is None:
            raise SojournClientError("the turn has not ended: iterate the stream")
        return self._reader.turn


class AsyncSession:
    """One conversation. `num_turns` is the number of the next turn, sent with it so that a repetition runs only once."""

    def __init__(self, client: "AsyncClient", info: SessionInfo, tenant: str | None = None) -> None:
        self._client = client
        self._whose = whose(tenant)
        self.id = info.id
        self.imported_kv = info.kv
        self.num_turns = info.turns

    async def turn(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[TurnOptions],
    ) -> Turn:
        """Run a turn and wait for its end."""
        body = {**content_of(text, messages, token_ids), **options, "turn": self.num_turns}
        return self._ended(Turn.of(await self._client.call(Call("POST", session_path(self.id, "/turns"), body))))

    @asynccontextmanager
    async def stream(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[TurnOptions],
    ) -> AsyncIterator[AsyncStream]:
        """Run a turn and give its deltas as they come. Leaving the block early undoes the turn."""
        body = {**content_of(text, messages, token_ids), **options, "turn": self.num_turns, "stream": True}
        async with self._client.open_stream(Call("POST", session_path(self.id, "/turns"), body)) as stream:
            try:
                yield stream
            finally:
                if stream._reader.turn is not None:
                    self._ended(stream._reader.turn)

    async def append(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        wait: bool = False,
    ) -> Turn:
        """Have something computed ahead. A message stays open: the next append or turn goes on with it."""
        body = {**content_of(text, messages, token_ids), "turn": self.num_turns, "wait": wait}
        return self._ended(Turn.of(await self._client.call(Call("POST", session_path(self.id, "/append"), body))))

    def _ended(self, turn: Turn) -> Turn:
        if turn.finish_reason != "abort":
            self.num_turns = turn.turn + 1
        return turn

    async def interrupt(self, keep: int | None = None) -> bool:
        """Stop the running turn: that many tokens of its answer stand, None all so far, 0 undoes it. False: none ran."""
        answer = await self._client.call(Call("POST", session_path(self.id, "/interrupt"), {"keep": keep}, self._whose))
        return bool(answer["interrupted"])

    async def rewind(self, *, turns: int | None = None, length: int | None = None) -> SessionInfo:
        """Go back to the first `turns` turns, or to the first `length` tokens."""
        body = {"turns": turns, "length": length}
        info = SessionInfo.of(
            await self._client.call(Call("POST", session_path(self.id, "/rewind"), body, self._whose))
        )
        self.num_turns = info.turns
        return info

    async def fork(
        self, *, turns: int | None = None, length: int | None = None, session_id: str | None = None
    ) -> "AsyncSession":
        """A new session that begins with the first turns or tokens of this one, or with all."""
        body = {"turns": turns, "length": length, "session_id": session_id}
        info = SessionInfo.of(await self._client.call(Call("POST", session_path(self.id, "/fork"), body, self._whose)))
        return AsyncSession(self._client, info, self._whose.get("tenant"))

    async def export(self, *, kv: bool = False) -> bytes:
        """The session as a file, for `import_session` of a server with the same model. A running turn is no part of it.

        `kv`: with its keys and values, which may be hundreds of megabytes; the server needs a disk cache for that.
        """
        params = {**self._whose, **({"kv": "true"} if kv else {})}
        call = Call("GET", session_path(self.id, "/export"), params=params)
        return (await self._client.fetch(call)).content

    async def info(self) -> SessionInfo:
        info = SessionInfo.of(await self._client.call(Call("GET", session_path(self.id), params=self._whose)))
        self.num_turns = info.turns
        return info

    async def close(self) -> Closed:
        answer = await self._client.call(Call("DELETE", session_path(self.id), params=self._whose))
        return Closed(answer["deferred"], answer["freed_pages"])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self.close()
        except ApiError as error:
            if error.status != 404:  # it expired meanwhile
                raise


class AsyncClient:
    """A server. Used in one event loop."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = http or httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout)

    async def open_session(
        self, session_id: str | None = None, *, timeout: float | None = None, priority: int = 0
    ) -> AsyncSession:
        """A new session, closed by itself after `timeout` seconds of idleness.

        The higher its `priority`, the later its cache is given up for others; what was said stays in any case.
        """
        body = {"session_id": session_id, "timeout": timeout, "priority": priority}
        return AsyncSession(self, SessionInfo.of(await self.call(Call("POST", "/v1/sessions", body))))

    async def session(self, session_id: str, *, tenant: str | None = None) -> AsyncSession:
        """A session that is open already. Administrators may look at those of another `tenant`, cut and close them."""
        call = Call("GET", session_path(session_id), params=whose(tenant))
        return AsyncSession(self, SessionInfo.of(await self.call(call)), tenant)

    async def import_session(self, data: bytes, session_id: str | None = None) -> AsyncSession:
        """A new session from the file of an exported one, by the server's own name or by `session_id`."""
        params = {} if session_id is None else {"session_id": session_id}
        call = Call("POST", "/v1/sessions/import", params=params, content=data)
        return AsyncSession(self, SessionInfo.of(await self.call(call)))

    async def sessions(self) -> list[SessionInfo]:
        return [SessionInfo.of(body) for body in (await self.call(Call("GET", "/v1/sessions")))["data"]]

    async def pools(self) -> Json:
        """For administrators: pages of each pool by owner."""
        return await self.call(Call("GET", "/v1/pools"))

    async def flush_pools(self) -> None:
        """For administrators: drop cached and idle KV; sessions and their histories live. ApiError while anything runs."""
        await self.call(Call("POST", "/v1/pools/flush"))

    async def is_ready(self, wait: float = 0.0) -> bool:
        """Whether the server takes work, waiting up to that many seconds for its engine."""
        try:
            return (await self._http.get("/ready", params={"wait": wait})).status_code == 200
        except httpx.TransportError:
            return False

    async def call(self, call: Call) -> Json:
        """Make it, again while the server asks for patience, and return the answer's JSON. Raises ApiError."""
        answer: dict[str, Any] = (await self.fetch(call)).json()
        return answer

    async def fetch(self, call: Call) -> httpx.Response:
        """As `call`, for an answer that is no JSON."""
        attempt = 0
        while True:
            try:
                response = await self._http.request(
                    call.method, call.path, json=call.body, content=call.content, params=dict(call.params)
                )
            except httpx.TransportError as error:
                raise ConnectionFailedError(f"{call.method} {call.path}: {error}") from error
            pause = should_repeat(response.status_code, response.headers, attempt)
            if pause is None:
                raise_refusal(response.status_code, response.text, response.headers)
                return response
            attempt += 1
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def open_stream(self, call: Call) -> AsyncIterator[AsyncStream]:
        try:
            async with self._http.stream(call.method, call.path, json=call.body) as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise_refusal(response.status_code, response.text, response.headers)
                yield AsyncStream(response)
        except httpx.TransportError as error:
            raise ConnectionFailedError(f"{call.method} {call.path}: {error}") from error

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
