"""Calls as a client of the native dialect makes them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import httpx
from tests.support.server import Server

Json: TypeAlias = dict[str, Any]
VOCAB = 258
LONG = 3000


def ids(count: int, salt: int = 0) -> list[int]:
    return [(salt * 31 + index * 7 + 3) % (VOCAB - 2) for index in range(count)]


def body_of(count: int, sampling: Json | None = None, **fields: object) -> Json:
    return {"sampling_params": {"temperature": 0, "max_new_tokens": count, **(sampling or {})}, **fields}


def post(server: Server, count: int, sampling: Json | None = None, **fields: object) -> httpx.Response:
    return server.http.post("/generate", json=body_of(count, sampling, **fields))


def generate(server: Server, count: int, sampling: Json | None = None, **fields: object) -> Json:
    response = post(server, count, sampling, **fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def turn(server: Server, session: str, input_ids: list[int], count: int, **fields: object) -> Json:
    return generate(server, count, input_ids=input_ids, session_params={"id": session}, **fields)


def open_session(server: Server, *, streaming: bool = True, **fields: object) -> str:
    body = {"capacity_of_str_len": 1000, "streaming": streaming, **fields}
    response = server.http.post("/open_session", json=body)
    assert response.status_code == 200, response.text
    name = response.json()
    assert isinstance(name, str)
    return name


def close_session(server: Server, session: str) -> Json:
    response = server.http.post("/close_session", json={"session_id": session})
    assert response.status_code == 200
    answer: Json = response.json()
    return answer


def chunks_of(response: httpx.Response) -> Iterator[Json]:
    """Every chunk; the last line of a stream is [DONE]."""
    last = ""
    for line in response.iter_lines():
        if line.startswith("data: "):
            last = line.removeprefix("data: ")
            if last != "[DONE]":
                yield json.loads(last)
    assert last == "[DONE]"


def stream(server: Server, count: int, **fields: object) -> list[Json]:
    with server.http.stream("POST", "/generate", json=body_of(count, stream=True, **fields)) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(chunks_of(response))


@contextmanager
def running(server: Server, **fields: object) -> Iterator[Iterator[Json]]:
    """A long stream whose first chunk has come; it is undone when the block is left, unless it has ended."""
    body = body_of(LONG, {"ignore_eos": True}, stream=True, **fields)
    with server.http.stream("POST", "/generate", json=body) as response:
        chunks = chunks_of(response)
        next(chunks)
        yield chunks


class Waiting:
    """A request in a thread of its own. `answer` waits for it."""

    def __init__(self, server: Server, count: int, **fields: object) -> None:
        self._responses: list[httpx.Response] = []
        self._thread = threading.Thread(target=lambda: self._responses.append(post(server, count, **fields)))
        self._thread.start()

    def answer(self) -> Json:
        self._thread.join(60)
        response = self._responses[0]
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer


def refusal(server: Server, message: str, **fields: object) -> None:
    """The same refusal, streamed and not: 400 with a message, and an abort chunk with [DONE] behind it."""
    response = post(server, 4, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"] == message
    (chunk,) = stream(server, 4, **fields)
    reason = chunk["meta_info"]["finish_reason"]
    assert reason == {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
    assert (chunk["text"], chunk["output_ids"]) == ("", [])


def abort(server: Server, rid: str) -> int:
    """The status of an abort that is repeated until its request has arrived."""
    status = 404
    for _ in range(2000):
        status = server.http.post("/abort_request", json={"rid": rid}).status_code
        if status == 200:
            break
    return status


def abort_running(server: Server, **fields: object) -> Json:
    """A long stream, aborted after its first chunk: its last one."""
    with running(server, rid="aborted", **fields) as chunks:
        assert abort(server, "aborted") == 200
        return list(chunks)[-1]
