"""Why a request ends, and where its output does: the first of stop id, stop string and length, in token order.

Asked after every appended token, so one token a step and a verified run of drafts get the same answer.
"""

from dataclasses import dataclass
from enum import StrEnum

from sojourn.scheduler.request import Request


class FinishReason(StrEnum):
    STOP = "stop"  # an EOS id or a stop string
    LENGTH = "length"
    INTERRUPT = "interrupt"  # asked to stop now; what was generated stands
    ABORT = "abort"  # the request is undone


@dataclass(frozen=True, slots=True)
class Stop:
    reason: FinishReason
    match: str | int | None = None  # the stop string or the id that ended it


_BY_LENGTH = Stop(FinishReason.LENGTH)


def stop_at(request: Request, token: int) -> Stop | None:
    """Whether the output ends with `token`, which has just been appended. Feeds the stop matcher once per token."""
    if token in request.ending_ids:
        return Stop(FinishReason.STOP, token)
    if request.matcher is not None:
        match = request.matcher.feed(token)
        if match is not None:
            return Stop(FinishReason.STOP, match)
    return _BY_LENGTH if request.cached.num_tokens >= request.length_max else None
