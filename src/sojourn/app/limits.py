"""What a server bounds, per session and per tenant: `serve --limit NAME=N`, as often as there are names."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated

import typer

from sojourn.core.bounds import check_range
from sojourn.core.errors import ClientError

COUNT_MAX = 1_000_000_000

LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=N",
        help="A bound, again and again: tenant_sessions, tenant_turns (running and waiting), tenant_waiting, "
        "session_tokens, requests (of all tenants).",
    ),
]


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no bound of its own."""

    sessions: int = 4096
    tenant_sessions: int | None = None
    tenant_turns: int = 128
    tenant_waiting: int | None = None
    session_tokens: int | None = None
    requests: int = 256  # of all tenants, running and waiting

    @classmethod
    def of(cls, sessions: int, given: Sequence[str] | None) -> "Limits":
        """Raises ClientError for a name that is none, or a number out of its bounds."""
        limits = cls(sessions)
        names = [field.name for field in fields(cls) if field.name != "sessions"]  # that has an option of its own
        for text in given or ():
            name, _, number = text.partition("=")
            if name not in names or not number.isascii() or not number.isdigit():
                raise ClientError(
                    f"limit must be NAME=N with a name of {', '.join(names)}, got {text!r}", param="limit"
                )
            limits = replace(limits, **{name: int(number)})
        check_range("sessions", limits.sessions, 1, 1_000_000)
        check_range("tenant_sessions", limits.tenant_sessions, 1, COUNT_MAX, optional=True)
        check_range("tenant_turns", limits.tenant_turns, 1, COUNT_MAX)
        check_range("tenant_waiting", limits.tenant_waiting, 1, COUNT_MAX, optional=True)
        check_range("requests", limits.requests, 1, COUNT_MAX)
        check_range("session_tokens", limits.session_tokens, 2, COUNT_MAX, optional=True)
        return limits
