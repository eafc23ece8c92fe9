"""Requests and server-sent events of the sessions API, without a connection: shared by the client that waits and the one
that awaits.

A call that may be repeated is marked so; the transport repeats it when the server says 503 or 429 with Retry-After. Turns
and appends carry their number, so a repetition is answered and not run twice.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict
from urllib.parse import quote

from sojourn.client.models import ApiError, Delta, Json, Started, TokenLogprob, Turn

DONE = "[DONE]"
RETRIES = 2
RETRY_AFTER_MAX_S = 30.0


class TurnOptions(TypedDict, total=False):
    """Options of a turn; meanings, bounds and defaults are the server's."""

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[str, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    logprobs: int | None
    ignore_eos: bool
    wait: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request."""

    method: str
    path: str
    body: Json | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None  # a body that is no JSON


def content_of(
    text: str | None, messages: Sequence[Mapping[str, str]] | None, token_ids: Sequence[int] | None
) -> dict[str, Any]:
    """The input of a turn or an append: what was given of the three."""
    body: dict[str, Any] = {}
    if text is not None:
        body["text"] = text
    if messages is not None:
        body["messages"] = [dict(message) for message in messages]
    if token_ids is not None:
        body["token_ids"] = list(token_ids)
    return body


def session_path(session_id: str, what: str = "") -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}{what}"


def whose(tenant: str | None) -> dict[str, str]:
    """The parameter that an administrator names a tenant's session with."""
    return {} if tenant is None else {"tenant": tenant}


def should_repeat(status: int, headers: Mapping[str, str], attempt: int) -> float | None:
    """Seconds to wait before the call is made again; None: it is not."""
    if attempt >= RETRIES or headers.get("x-should-retry") == "false" or status not in (429, 503):
        return None
    after = _seconds(headers.get("retry-after"))
    return 1.0 if after is None else min(RETRY_AFTER_MAX_S, max(0.0, after))


def _seconds(header: str | None) -> float | None:
    """None: it was not said, or as a date."""
    try:
        return None if header is None else float(header)
    except ValueError:
        return None


def raise_refusal(status: int, text: str, headers: Mapping[str, str]) -> None:
    """ApiError for a status of 400 and more."""
    if status < 400:
        return
    try:
        body = json.loads(text)
    except ValueError:
        body = {"error": {"message": text[:500]}}
    after = _seconds(headers.get("retry-after"))
    raise ApiError(status, body if isinstance(body, dict) else {}, headers.get("x-request-id"), after)


class EventReader:
    """Lines of a stream to deltas; `started` is set before the first, unless the turn stood already, `turn` at the end."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.turn: Turn | None = None

    def read(self, line: str) -> Delta | None:
        """The delta in this line, if there is one. Raises ApiError for an error of the server."""
        if not line.startswith("data: ") or line == f"data: {DONE}":
            return None
        event = json.loads(line.removeprefix("data: "))
        match event.get("type"):
            case "turn.started":
                self.started = Started(event["turn"], event["prompt_tokens"])
            case "delta":
                logprobs = tuple(TokenLogprob.of(*entry) for entry in event.get("logprobs", ()))
                return Delta(event["text"], tuple(event["token_ids"]), logprobs)
            case "turn.ended":
                self.turn = Turn.of(event)
            case "error":
                raise ApiError(0, event)
        return None
