"""What the engine tells the world about a request. Frozen; in order per request; exactly one `Finished`, the last."""

from dataclasses import dataclass

from sojourn.core.ids import RequestId
from sojourn.core.record import record
from sojourn.core.step import Sample
from sojourn.scheduler.stop import FinishReason

__all__ = ["Event", "FinishReason", "FinishedEvent", "Notice", "TokensEvent", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and times of one request; times in seconds of the engine's clock.

    `prompt_tokens` counts the whole history and the new tokens, `cached_tokens` those whose KV was reused.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queued_at: float
    admitted_at: float | None
    first_token_at: float | None
    finished_at: float
    num_retractions: int = 0
    cached_source: str = "none"  # "none", "prefix", or a decorator's own word
    cache_miss: str | None = None  # why they were less than the history, in a decorator's words; None: they were not
    num_drafted: int = 0  # tokens guessed ahead and verified
    num_accepted: int = 0  # of those, what stood in its step; the last ones may be past the end
    read_tokens: int = 0  # of those cached, what a slower tier had and the pool had not


@record()
class TokensEvent:
    """`known`: the prompt's next tokens with their log-probabilities, where they are asked for; before the first sample."""

    request_id: RequestId
    samples: tuple[Sample, ...]
    cached_tokens: int = 0  # of the request's prompt; the same in each of its events
    known: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """`output_ids` are the samples sent, cut at the stop (a tail past it is not sent). They stand, but after an ABORT."""

    request_id: RequestId
    reason: FinishReason
    output_ids: tuple[int, ...]
    usage: Usage
    stop_match: str | int | None = None  # the stop string or EOS id that ended it
    message: str = ""  # why, for an abort


@dataclass(frozen=True, slots=True)
class Notice:
    """Base of what the layers above have to tell that belongs to no request."""


Event = TokensEvent | FinishedEvent
