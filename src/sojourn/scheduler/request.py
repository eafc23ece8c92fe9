"""A request as the scheduler sees it: tokens so far, how to draw the next, when to stop, and how far it has been run.

Owns the token buffer (which it shows to the cache inside `CacheRequest`). Knows no pages and no clients.

        0 ............ committed ............ num_launched ............ num_tokens ....... length_max
        KV is final    | KV in a running step | known, not yet computed | to be generated

A request that runs ahead has launched more tokens than it knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np

from sojourn.cache.protocol import CacheKey, CacheRequest, Terms
from sojourn.core.errors import law
from sojourn.core.ids import RequestId, SeqId, StepId
from sojourn.core.step import KnownRows, SamplingParams, TokenArray
from sojourn.scheduler.drafting import Acceptance

_GROWTH_MIN = 64  # tokens added to a full buffer, at least; a buffer also doubles


class StopMatcher(Protocol):
    """Finds stop strings over token edges. Injected from above; fed every output token once, in order."""

    def feed(self, token_id: int) -> str | None:
        """The stop string that `token_id` completes, or None."""
        ...


class RequestState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When a request ends before its length: at an id of `stop_ids`, or of `eos_ids` unless they are ignored."""

    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    matcher: StopMatcher | None = field(default=None, compare=False)

    @property
    def ending_ids(self) -> frozenset[int]:
        return self.stop_ids if self.ignore_eos else self.stop_ids | self.eos_ids


@dataclass(slots=True)
class RequestTimes:
    """In seconds of the engine's clock; None: has not happened."""

    queued_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Pages were short for it, up to `length` on these terms, at step `tried_at`; since step `since` again and again."""

    since: StepId
    tried_at: StepId
    retry_at: StepId
    round: int  # of admission; in a later one it may be tried at once
    length: int
    terms: Terms


@dataclass(slots=True, eq=False)
class Request:
    """Made by `make_request`. `num_tokens` and the buffer live in `cached`, once; the rest is the scheduler's own.

    `runs` counts admissions: a step launched in an earlier run has a result that nobody wants any more.
    """

    cached: CacheRequest
    sampling: SamplingParams
    max_new_tokens: int
    ending_ids: frozenset[int]
    matcher: StopMatcher | None
    times: RequestTimes
    length_max: int = 0  # prompt + output never pass it: max_new_tokens and the context; set at the door
    arrival: int = 0  # place in the order of arrival; set at the door
    state: RequestState = RequestState.WAITING
    seq: SeqId | None = None  # a row of the core's tables, only while running
    num_launched: int = 0  # tokens whose KV is computed, or being computed by a step in flight, at the least
    drafts_in_flight: int = 0  # how many more may turn out to be
    acceptance: Acceptance | None = None  # what became of its drafts, in the policy's words; None: it never had any
    runs: int = 0
    outputs_at_admission: int = 0
    num_retractions: int = 0
    refusal: Refusal | None = None  # the last one since it began to wait
    held_up_since: StepId | None = None  # pages are short for it, and it is the first that waits
    is_long: bool = False  # its prompt takes many steps, as it looked when it was last tried
    put_off_in: int = -1  # the round of admission in which it was too long to pass others
    cached_tokens: int = 0  # prefix found at the first admission
    cached_source: str = "none"  # where it was found, in the cache's words
    read_tokens: int = 0  # of it, read for this request
    cache_miss: str | None = None  # and why it was not more, if there was more
    is_published: bool = False
    num_logprobs: int = 0  # beside each token of the prompt that is scored
    only_computes: bool = False  # its prompt is to be cached and nothing generated
    shows_history: bool = False  # to the sampler, for penalties

    @property
    def request_id(self) -> RequestId:
        return self.cached.request_id

    @property
    def num_outputs(self) -> int:
        return self.cached.num_tokens - self.cached.num_prompt

    @property
    def is_ahead(self) -> bool:
        """All tokens known are launched: the next work begins with one that a step in flight accepts."""
        return self.num_launched >= self.cached.num_tokens

    @property
    def may_run_ahead(self) -> bool:
        """Whether what is in flight might not be its end. The last token's KV is never computed."""
        return self.num_launched < self.length_max - 1

    @property
    def drafts_room(self) -> int:
        """Drafts that its next decode could have at most, if none in flight are accepted."""
        return self.length_max - 2 - self.num_launched

    def end_max(self, tokens: int) -> int:
        """Where a decode of `tokens` ends at most, after what is in flight."""
        return min(self.num_launched + self.drafts_in_flight + tokens, self.length_max - 1)

    @property
    def output_ids(self) -> tuple[int, ...]:
        return tuple(self.cached.tokens[self.cached.num_prompt : self.cached.num_tokens].tolist())

    def known_rows(self, start: int, end: int) -> KnownRows | None:
        """Rows of a work over `[start, end)` whose log-probability is wanted and was not given yet: those of the prompt
        but its last, whose token is drawn. Until they are computed the cache reuses nothing from the first of them on.
        """
        wanted, num_prompt = self.cached.prefix_max, self.cached.num_prompt
        if wanted is None:
            return None
        first, last = max(start, wanted), min(end, num_prompt - 1)
        if first >= last:
            return None
        following = self.cached.tokens[first + 1 : last + 1].tolist()
        return KnownRows(first - start, tuple(following), self.num_logprobs)

    def score(self, end: int) -> None:
        """Rows below `end` are computed and their log-probabilities told."""
        wanted = self.cached.prefix_max
        if wanted is not None and end > wanted:
            self.cached.prefix_max = end if end < self.cached.num_prompt - 1 else None

    def append(self, token: int) -> None:
        """The next output token. The buffer grows by doubling; a view handed out earlier stays as it was."""
        cached = self.cached
        length = cached.num_tokens
        if length >= self.length_max:
            law(False, "request %s grew past %d tokens", cached.request_id, self.length_max)
        if length == len(cached.tokens):
            grown = np.empty(length + max(_GROWTH_MIN, length), dtype=np.int32)
            grown[:length] = cached.tokens
            cached.tokens = grown
        cached.tokens[length] = token
        cached.num_tokens = length + 1


def make_request(
    request_id: RequestId,
    prompt: TokenArray | Sequence[int],
    *,
    key: CacheKey,
    sampling: SamplingParams,
    max_new_tokens: int,
    stop: StopConditions,
    now: float,
    logprobs_from: int | None = None,
) -> Request:
    """A waiting request over `prompt` (copied). What it asks for has been checked at the door.

    `logprobs_from`: log-probabilities of the prompt's tokens from this one on are told too, as `sampling` says of output;
    those of the first token of all are unknown. What lies before it may be reused, the rest is computed.
    """
    num_prompt = len(prompt)
    tokens = np.empty(num_prompt + max(0, min(max_new_tokens, _GROWTH_MIN)), dtype=np.int32)
    tokens[:num_prompt] = prompt
    row = None if logprobs_from is None else max(logprobs_from, 1) - 1  # that tells of it
    return Request(
        cached=CacheRequest(
            request_id,
            key,
            num_prompt,
            tokens,
            num_prompt,
            prefix_max=row if row is not None and row < num_prompt - 1 else None,
        ),
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        ending_ids=stop.ending_ids,
        matcher=stop.matcher,
        times=RequestTimes(queued_at=now),
        num_logprobs=sampling.num_logprobs or 0,
        only_computes=max_new_tokens == 0,
        shows_history=sampling.has_penalties,
    )
