"""What a load run takes for an error that was not asked for."""

import asyncio
from collections import Counter

import httpx
import pytest

from tests.load.asking import Asking, Json, UnexpectedError

BUSY = {"error": {"code": "session_busy"}}


def ask(*answers: httpx.Response, may_be_busy: bool = False) -> tuple[Json, Counter[str]]:
    """What is made of these answers, given one after another."""
    done: Counter[str] = Counter()
    left = list(answers)

    async def run() -> Json:
        transport = httpx.MockTransport(lambda request: left.pop(0))
        async with httpx.AsyncClient(base_url="http://server", transport=transport) as http:
            return await Asking(http, done).post("/x", {}, may_be_busy=may_be_busy)

    return asyncio.run(run()), done


def test_come_back_later_is_counted_and_tried_again() -> None:
    later = [httpx.Response(status, headers={"Retry-After": "0"}) for status in (429, 503)]
    answer, done = ask(*later, httpx.Response(409, json=BUSY), httpx.Response(200, json={"a": 1}), may_be_busy=True)
    assert answer == {"a": 1}
    assert done == {"429, tried again": 1, "503, tried again": 1, "409 after leaving, tried again": 1}


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(500),
        httpx.Response(503),
        httpx.Response(429),
        httpx.Response(404, json={}),
        httpx.Response(409, json=BUSY),
    ],
)
def test_other_refusals_end_the_run(answer: httpx.Response) -> None:
    with pytest.raises(UnexpectedError, match=str(answer.status_code)):
        ask(answer)


def test_an_error_in_a_stream_ends_the_run() -> None:
    async def run() -> None:
        text = 'data: {"type": "turn.started"}\n\ndata: {"type": "error", "error": {"code": "capacity"}}\n\n'
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
        http = httpx.AsyncClient(base_url="http://server", transport=transport)
        async with http, Asking(http, Counter()).stream("/x", {}) as events:
            assert (await anext(events))["type"] == "turn.started"
            await anext(events)

    with pytest.raises(UnexpectedError, match="capacity"):
        asyncio.run(run())
