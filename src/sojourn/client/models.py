"""What the server answers, as values. Knows the wire's JSON; imports nothing of the engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]


class SojournClientError(Exception):
    """Base of everything this client raises."""


class ApiError(SojournClientError):
    """The server refused, or failed. `status` is 0 for an error in the middle of a stream; `retry_after` in seconds."""

    def __init__(
        self, status: int, body: Json, request_id: str | None = None, retry_after: float | None = None
    ) -> None:
        error = body.get("error") or {}
        message = str(error.get("message") or f"HTTP {status}")
        super().__init__(message)
        self.status = status
        self.type: str | None = error.get("type")
        self.param: str | None = error.get("param")
        self.code: str | None = error.get("code")
        self.request_id = request_id
        self.retry_after = retry_after


class ConnectionFailedError(SojournClientError):
    """The server could not be reached, or the connection broke."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. `prompt_tokens` counts the whole history and what was new."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, body: Json) -> "Usage":
        return cls(body["prompt_tokens"], body["completion_tokens"], body["total_tokens"], body["cached_tokens"])


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What was not computed again, where it came from, and why it was not more."""

    cached_tokens: int
    new_tokens: int
    source: str
    miss_reason: str | None

    @classmethod
    def of(cls, body: Json) -> "CacheReport":
        return cls(body["cached_tokens"], body["new_tokens"], body["source"], body["miss_reason"])


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, token_id: int, logprob: float, top: Iterable[Sequence[Any]]) -> "TokenLogprob":
        return cls(token_id, logprob, tuple((token, value) for token, value in top))


@dataclass(frozen=True, slots=True)
class Started:
    """What is known of a streamed turn before its first delta."""

    turn: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed answer. `logprobs` are empty unless they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


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
            usage=Usage.of(body["usage"]),
            cache=CacheReport.of(body["cache"]),
            logprobs=None
            if logprobs is None
            else tuple(TokenLogprob.of(entry["token_id"], entry["logprob"], entry["top"]) for entry in logprobs),
            replayed=body["replayed"],
        )


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages that a session holds in one pool: its own, and those it borrows."""

    own: int
    leased: int


@dataclass(frozen=True, slots=True)
class ImportedKv:
    """KV that came with a session's file: tokens that its next turn may find, and why there were not more."""

    tokens: int
    left_out: str | None


@dataclass(frozen=True, slots=True)
class Killed:
    """A turn that the end of the server's engine cut off: no part of the history. What it had said."""

    new_tokens: int
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """`tenant` is empty on a server without keys."""

    id: str
    tenant: str
    state: str
    turns: int
    tokens: int
    timeout: float | None
    pages: Mapping[str, Pages]
    priority: int = 0
    killed: Killed | None = None  # until the next turn
    kv: ImportedKv | None = None  # of an import whose file had KV

    @classmethod
    def of(cls, body: Json) -> "SessionInfo":
        return cls(
            id=body["id"],
            tenant=body["tenant"],
            state=body["state"],
            turns=body["turns"],
            tokens=body["tokens"],
            timeout=body["timeout"],
            pages={pool: Pages(held["own"], held["leased"]) for pool, held in body["pages"].items()},
            priority=body["priority"],
            killed=_killed(body["killed"]),
            kv=_imported_kv(body.get("kv")),
        )


def _imported_kv(body: Json | None) -> ImportedKv | None:
    return None if body is None else ImportedKv(body["tokens"], body["left_out"])


def _killed(body: Json | None) -> Killed | None:
    return None if body is None else Killed(body["new_tokens"], tuple(body["token_ids"]), body["text"])


@dataclass(frozen=True, slots=True)
class Closed:
    """`deferred`: a turn runs, and the session closes when it ends."""

    deferred: bool
    freed_pages: int | None
