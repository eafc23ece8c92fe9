"""Refusals as clients see them: one status and one body, the OpenAI shape. Knows every error of ours, no surface.

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sojourn.api import wire
from sojourn.api.engine_link import EngineDownError, OverloadedError, StoreDownError
from sojourn.core.errors import ClientError, ConflictError, SojournError


class AuthenticationError(ClientError):
    """No key, or one that is not known."""

    status = 401


class PermissionDeniedError(ClientError):
    """The key's role does not reach this."""

    status = 403


class TooLargeError(ClientError):
    status = 413


class LimitError(ClientError):
    """A bound of this server or tenant is reached now; later there may be room."""

    status = 429

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.retry_after_s = retry_after_s


class DrainingError(SojournError):
    """The server is shutting down and takes no new work."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error, ready to be sent."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return _TYPES.get(status, "invalid_request_error")


def fault_of(error: SojournError, retry_after_s: int = 1) -> Fault:
    """What a client is told of `error`."""
    if isinstance(error, ClientError):
        headers: dict[str, str] = {}
        if isinstance(error, ConflictError):
            headers["x-should-retry"] = "false"  # clients retry a 409 by themselves; a busy session would see it again
        if error.status == 429:
            headers["retry-after"] = str(error.retry_after_s or retry_after_s)
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        return Fault(error.status, str(error), type_of(error.status), error.param, error.code, headers)
    if isinstance(error, EngineDownError | OverloadedError | DrainingError | StoreDownError):
        code = {
            EngineDownError: "engine_unavailable",
            OverloadedError: "overloaded",
            DrainingError: "draining",
            StoreDownError: wire.STORE_DOWN,
        }
        retry = {"retry-after": str(retry_after_s)}
        return Fault(503, str(error), "server_error", None, code[type(error)], retry)
    return Fault(500, str(error), "server_error")


def validation_fault(problems: Sequence[Mapping[str, object]]) -> Fault:
    """A body or a parameter of the wrong shape: 400 that names the first field, with all problems in the message."""
    said = [f"{_place(problem)}: {problem.get('msg')}" for problem in problems]
    first = problems[0] if problems else {}
    kinds = {"json_invalid": "invalid_json", "extra_forbidden": "unknown_parameter", "missing": "missing_parameter"}
    kind = str(first.get("type"))
    code = kinds.get(kind, kind if kind.startswith("unsupported_") else "invalid_value")
    more = f" (and {len(said) - 3} more)" if len(said) > 3 else ""
    return Fault(400, "; ".join(said[:3]) + more, "invalid_request_error", _place(first) or None, code)


def _place(problem: Mapping[str, object]) -> str:
    """`token_ids.3` of ("body", "token_ids", 3)."""
    where = problem.get("loc", ())
    parts = list(where) if isinstance(where, tuple | list) else []
    if parts and parts[0] in ("body", "query", "path", "header"):
        parts = parts[1:]
    return ".".join(str(part) for part in parts) or "body"
