"""The end of every request, told once: to the metrics, to the log (one line, no text) and to the trace.

Knows numbers and names; sees no text and no token.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from sojourn.api import wire
from sojourn.api.metrics import Metrics

logger = logging.getLogger("sojourn.turn")
Field = str | int | float | None


@dataclass(frozen=True, slots=True)
class Asker:
    """Whose request it is, for the log."""

    request_id: str
    tenant: str = ""
    traceparent: str | None = None


class Tracer(Protocol):
    """Told the end of every request: `tracing.Tracer`, where tracing is configured."""

    def ended(self, asker: Asker, command: wire.Start, end: wire.Ended, model: str) -> None: ...

    def close(self) -> None: ...


def ended(metrics: Metrics, asker: Asker, command: wire.Start, end: wire.Ended) -> None:
    """The engine told the end of a request."""
    metrics.ended(end, is_session=command.session_id is not None)
    if end.reason == "abort":
        metrics.aborted("store" if end.is_unstored else "client")
    _log(turn_fields(asker, command, end))


def left(metrics: Metrics, asker: Asker, command: wire.Start, why: str) -> None:
    """Nobody waits for the end of this request: the client went away, or the engine did."""
    metrics.aborted(why)
    _log(_names(asker, command, why))


def turn_fields(asker: Asker, command: wire.Start, end: wire.Ended) -> dict[str, Field]:
    """Everything about a turn but what was said."""
    usage = end.usage
    return _names(asker, command, end.reason) | {
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_tokens,
        "new": usage.prompt_tokens - usage.cached_tokens,
        "completion": usage.completion_tokens,
        "source": usage.cached_source,
        "miss": end.miss,
        "retractions": usage.num_retractions,
        "pages": end.pages_held,
        "queue_ms": _milliseconds(usage.queued_at, usage.admitted_at),
        "ttft_ms": _milliseconds(usage.queued_at, usage.first_token_at),
        "total_ms": _milliseconds(usage.queued_at, usage.finished_at),
    }


def line_of(fields: dict[str, Field]) -> str:
    """For people; what there is none of is a dash."""
    return " ".join(f"{name}={'-' if value in (None, '') else value}" for name, value in fields.items())


def _names(asker: Asker, command: wire.Start, finish: str) -> dict[str, Field]:
    return {
        "request": asker.request_id,
        "session": command.session_id,
        "tenant": asker.tenant,
        "finish": finish,
    }


def _log(fields: dict[str, Field]) -> None:
    logger.info("%s", line_of(fields), extra={"fields": fields})


def _milliseconds(start: float, end: float | None) -> float | None:
    return None if end is None else round((end - start) * 1000, 1)
