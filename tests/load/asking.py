"""Requests of a load run: what is not asked for raises, what was to be expected is counted and tried again.

To be expected are 429 and 503 with Retry-After, and 409 `session_busy` where the caller has just left a turn or sent two.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias, cast

import httpx

Json: TypeAlias = dict[str, Any]
TRIES_MAX = 200
BUSY_PAUSE_S = 0.05


class UnexpectedError(AssertionError):
    """An answer that nobody asked for."""


async def pause(seconds: float) -> None:
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


def is_busy(response: httpx.Response) -> bool:
    return response.status_code == 409 and response.json()["error"]["code"] == "session_busy"


class Asking:
    """One connection pool, and the count of everything done with it."""

    def __init__(self, http: httpx.AsyncClient, done: "Counter[str]") -> None:
        self._http = http
        self.done = done

    async def post(self, path: str, body: Json, *, may_be_busy: bool = False) -> Json:
        return await self._ask("POST", path, body, may_be_busy)

    async def get(self, path: str) -> Json:
        return await self._ask("GET", path, None, False)

    async def delete(self, path: str) -> Json:
        return await self._ask("DELETE", path, None, False)

    async def download(self, path: str) -> bytes:
        return (await self._whole("GET", path, None, None, False)).content

    async def upload(self, path: str, data: bytes) -> Json:
        answer: Json = (await self._whole("POST", path, None, data, False)).json()
        return answer

    async def _ask(self, method: str, path: str, body: Json | None, may_be_busy: bool) -> Json:
        answer: Json = (await self._whole(method, path, body, None, may_be_busy)).json()
        return answer

    async def _whole(
        self, method: str, path: str, body: Json | None, data: bytes | None, may_be_busy: bool
    ) -> httpx.Response:
        for _ in range(TRIES_MAX):
            response = await self._http.request(method, path, json=body, content=data)
            if response.status_code == 200:
                return response
            await self._wait_to_repeat(response, f"{method} {path} {body}", may_be_busy)
        raise UnexpectedError(f"{method} {path}: refused {TRIES_MAX} times, last {response.status_code}")

    async def _wait_to_repeat(self, response: httpx.Response, what: str, may_be_busy: bool) -> None:
        status = response.status_code
        if status in (429, 503) and "retry-after" in response.headers:
            self.done[f"{status}, tried again"] += 1
            await pause(float(response.headers["retry-after"]))
        elif may_be_busy and is_busy(response):
            self.done["409 after leaving, tried again"] += 1
            await pause(BUSY_PAUSE_S)
        else:
            raise UnexpectedError(f"{what:.300}: {status} {response.text:.500}")

    async def once(self, path: str, body: Json) -> httpx.Response:
        """One try, whatever is answered."""
        return await self._http.post(path, json=body)

    @asynccontextmanager
    async def stream(self, path: str, body: Json) -> AsyncIterator[AsyncGenerator[Json, None]]:
        """The events of a stream; leaving the block breaks the connection if the stream has not ended."""
        for _ in range(TRIES_MAX):
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code == 200:
                    async with aclosing(_events(response)) as events:
                        yield events
                    return
                await response.aread()
                await self._wait_to_repeat(response, f"stream {path} {body}", True)
        raise UnexpectedError(f"stream {path}: refused {TRIES_MAX} times")


async def _events(response: httpx.Response) -> AsyncGenerator[Json, None]:
    """An error in the stream raises."""
    async with aclosing(cast(AsyncGenerator[str, None], response.aiter_lines())) as lines:
        async for line in lines:
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line.removeprefix("data: "))
                if event.get("error") or event.get("type") == "error":
                    raise UnexpectedError(f"in a stream: {event}")
                yield event
