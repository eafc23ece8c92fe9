"""What the server answers, as values. Knows the wire's JSON; imports nothing of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]


class SojournClientError(Exception):
    """Base of everything this client raises."""


class ApiError(SojournClientError):
    """The server refused, or failed. `status` is 0 for an error in the middle of a stream."""

    def __init__(self, status: int, body: Json, request_id: str | None = None) -> None:
        error = body.get("error") or {}
        message = str(error.get("message") or f"HTTP {status}")
        super().__init__(message)
        self.status = status
        self.type: str | None = error.get("type")
        self.param: str | None = error.get("param")
        self.code: str | None = error.get("code")
        self.request_id = request_id


class ConnectionFailedError(SojournClientError):
    """The server could not be reached, or the connection broke."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. `prompt_tokens` counts the whole history and what was new."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What was not computed again, where it came from, and why it was not more."""

    cached_tokens: int
    new_tokens: int
    source: str
    miss_reason: str | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed answer."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A finished turn, or an append. The first `kept_tokens` of `token_ids` are history."""

    id: str
    session_id: str
    turn: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop: str | int | None
    kept_tokens: int
    usage: Usage
    cache: CacheReport
    logprobs: tuple[TokenLogprob, ...] | None
    replayed: bool

    @classmethod
    def of(cls, body: Json) -> "Turn":
        logprobs = body["logprobs"]
        return cls(
            id=body["id"],
            session_id=body["session_id"],
            turn=body["turn"],
            text=body["text"],
            token_ids=tuple(body["token_ids"]),
            finish_reason=body["finish_reason"],
            stop=body["stop"],
            kept_tokens=body["kept_tokens"],
            usage=Usage(**body["usage"]),
            cache=CacheReport(**body["cache"]),
            logprobs=None
            if logprobs is None
            else tuple(
                TokenLogprob(entry["token_id"], entry["logprob"], tuple((i, p) for i, p in entry["top"]))
                for entry in logprobs
            ),
            replayed=body["replayed"],
        )


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages that a session holds in one pool: its own, and those it borrows."""

    own: int
    leased: int


@dataclass(frozen=True, slots=True)
class SessionInfo:
    id: str
    state: str
    turns: int
    tokens: int
    timeout: float | None
    pages: Mapping[str, Pages]

    @classmethod
    def of(cls, body: Json) -> "SessionInfo":
        pages = {pool: Pages(**held) for pool, held in body["pages"].items()}
        return cls(body["id"], body["state"], body["turns"], body["tokens"], body["timeout"], pages)


@dataclass(frozen=True, slots=True)
class Closed:
    """`deferred`: a turn runs, and the session closes when it ends."""

    deferred: bool
    freed_pages: int | None
