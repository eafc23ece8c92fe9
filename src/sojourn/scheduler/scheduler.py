"""Who runs in the next step, and how far. Policy over lengths in tokens; pages change hands only in the cache.

        submit            admit (atomic)            stop, abort, interrupt
    ────────▶ WAITING ───────────────▶ RUNNING ─────────────────────────▶ FINISHED
                 ▲                        │ retract (pages are short: the youngest, output kept)
                 └────────────────────────┘

A step: `plan` decides, the engine runs it, `settle` takes the result. Several steps may be planned before the first is
settled: then a request runs ahead, on a token that the runner will know, and its drafts are places it may need. A result
for a request that has ended or was retracted meanwhile is a zombie's, and is dropped.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sojourn.cache.protocol import Outcome, PrefixCache, PrefixMatch, Verdict
from sojourn.cache.release import release_kv_cache
from sojourn.core.clock import Clock
from sojourn.core.errors import ClientError, ConflictError, CorruptionError, NotFoundError, law
from sojourn.core.ids import RequestId, SeqId, StepId
from sojourn.core.step import BegunSequence, Sample, Span, StepPlan, StepResult, Work
from sojourn.scheduler.admission import Admission, Blocked
from sojourn.scheduler.budget import TokenBudget
from sojourn.scheduler.drafting import Acceptance, DraftPolicy
from sojourn.scheduler.flight import Flight, Launched
from sojourn.scheduler.latency import LatencyBound
from sojourn.scheduler.queue import WaitingQueue
from sojourn.scheduler.request import Request, RequestState
from sojourn.scheduler.retract import ForcedRetraction, youngest
from sojourn.scheduler.stop import FinishReason, Stop, stop_at


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Lengths in tokens. `step_tokens_max` covers one decode for every batch place."""

    context_length: int
    seqs_max: int  # batch places: rows of the core's page tables
    step_tokens_max: int = 1024
    chunk_tokens_max: int = 512
    retract_every: int = 0  # a test hook: force a retraction every n-th step

    def __post_init__(self) -> None:
        law(self.context_length >= 2, "a context of %d tokens", self.context_length)
        law(0 < self.seqs_max <= self.step_tokens_max, "%d places, %d tokens", self.seqs_max, self.step_tokens_max)
        law(self.chunk_tokens_max > 0, "chunks of %d tokens", self.chunk_tokens_max)


@dataclass(slots=True, eq=False)
class Progress:
    """What a settled step did for one request: samples that stand, and why it ended, if it did.

    `known`: its prompt's next tokens with their log-probabilities, where they are asked for.
    """

    request: Request
    samples: tuple[Sample, ...]
    stop: Stop | None = None
    known: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    waiting: int
    running: int
    in_flight: int  # steps planned and not settled
    admissions: int
    retractions: int
    retracted_tokens: int  # whose KV they gave up; what the cache kept of it is found again
    zombies: int
    drafted: int = 0  # guesses verified
    accepted: int = 0  # of those
    waiting_for: tuple[tuple[str, int], ...] = ()  # those who wait by reason, in the words of scheduler/admission.py


@dataclass(slots=True, eq=False)
class _Share:
    """What a request is to run in the step being planned: known tokens, or the one that a step in flight accepts last."""

    request: Request
    tokens: int
    is_ahead: bool = False
    drafts: int = 0


class Scheduler:
    """Owns the requests that are alive, their batch places and the order among them."""

    def __init__(
        self, cache: PrefixCache, config: SchedulerConfig, clock: Clock, policy: DraftPolicy | None = None
    ) -> None:
        self._cache = cache
        self._config = config
        self._clock = clock
        self._policy = policy  # None: nobody guesses
        self._requests: dict[RequestId, Request] = {}
        self._waiting = WaitingQueue()
        self._admission = Admission(self._waiting)
        self._latency = LatencyBound(config.chunk_tokens_max)
        self._running: list[Request] = []  # oldest arrival first
        self._flights: deque[Flight] = deque()
        self._free_seqs = [SeqId(seq) for seq in reversed(range(config.seqs_max))]
        self._forced = ForcedRetraction(config.retract_every) if config.retract_every else None
        self._arrivals = 0
        self._admissions = 0
        self._retractions = 0
        self._retracted_tokens = 0
        self._zombies = 0
        self._drafted = 0
        self._accepted = 0
        self._left_seqs: list[SeqId] = []  # since the last step that ran
        self._is_fetching = False  # when the last step was planned
        self._is_line_open = True  # the same

    @property
    def config(self) -> SchedulerConfig:
        return self._config

    @property
    def has_work(self) -> bool:
        return bool(self._requests) or bool(self._flights)

    @property
    def is_fetching(self) -> bool:
        """Somebody waits for what a slower tier is reading."""
        return self._is_fetching

    def running(self) -> Iterator[Request]:
        """Requests that hold pages, oldest first. For the audit."""
        return iter(self._running)

    def alive(self) -> Iterator[Request]:
        """Running and waiting ones, as they came. To look at."""
        return iter(self._requests.values())

    def planned(self) -> Sequence[Launched]:
        """The works of the step planned last, while it is in flight. For the audit."""
        return self._flights[-1].launched if self._flights else ()

    def blocked(self) -> Blocked | None:
        """The first of those who wait, if there is a place for it and it was refused for want of pages. For the audit."""
        if len(self._waiting) == 0 or not self._free_seqs:
            return None
        return self._admission.blocked(is_open=self._is_line_open)

    def get(self, request_id: RequestId) -> Request | None:
        return self._requests.get(request_id)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            waiting=len(self._waiting),
            running=len(self._running),
            in_flight=len(self._flights),
            admissions=self._admissions,
            retractions=self._retractions,
            retracted_tokens=self._retracted_tokens,
            zombies=self._zombies,
            drafted=self._drafted,
            accepted=self._accepted,
            waiting_for=tuple(self._admission.by_reason(has_place=bool(self._free_seqs)).items()),
        )

    # -- the door

    def check(self, num_prompt: int, max_new_tokens: int) -> None:
        """Refuse what can never run, before any object exists for it. Changes nothing.

        No new tokens: the prompt is computed and cached, nothing is sampled.
        """
        context = self._config.context_length
        if max_new_tokens < 0:
            raise ClientError(f"max_tokens must be at least 0, not {max_new_tokens}", param="max_tokens")
        if num_prompt < 1:
            raise ClientError("the prompt is empty: it needs at least 1 token", param="prompt")
        if num_prompt >= context:
            raise ClientError(
                f"the prompt has {num_prompt} tokens and must leave room in the context of {context}:"
                f" at most {context - 1}",
                param="prompt",
                code="context_length_exceeded",
            )
        shortage = self._cache.capacity(self._kv_len_max(num_prompt, max_new_tokens), self._config.chunk_tokens_max)
        if shortage is not None:
            raise ClientError(
                f"{num_prompt} prompt tokens and up to {max_new_tokens} new ones can never fit: {shortage}",
                param="prompt",
                code="capacity_exceeded",
            )

    def _kv_len_max(self, num_prompt: int, max_new_tokens: int) -> int:
        """Tokens of KV that a request may come to hold: the last generated token's is never computed."""
        return min(num_prompt + max(1, max_new_tokens), self._config.context_length) - 1

    def submit(self, request: Request) -> None:
        """Queue a request that passed `check`."""
        cached = request.cached
        self.check(cached.num_prompt, request.max_new_tokens)
        if request.request_id in self._requests:
            raise ConflictError(f"request {request.request_id} is alive already", param="request_id")
        request.length_max = min(cached.num_prompt + request.max_new_tokens, self._config.context_length)
        request.arrival = self._arrivals
        self._arrivals += 1
        self._requests[request.request_id] = request
        self._waiting.push(request)

    # -- one step

    def plan(self, step: StepId) -> StepPlan:
        """Decide step `step`. Empty when nothing can run. Grows, admits and retracts; never waits."""
        self._is_fetching = False
        victim = None if self._forced is None else self._forced.victim(self._running)
        is_short = victim is not None
        if victim is not None:
            self._retract(victim)
        budget = TokenBudget(self._config.step_tokens_max, self._config.chunk_tokens_max)
        flight, works = Flight(step), []
        for share in self._shares(step, budget):
            request = share.request
            if request.seq is None:
                continue  # retracted in this very pass, for an older one
            if not self._has_room(share):
                is_short |= not self._waits_for_fence(share)
                continue
            edits = self._cache.take_edits(request.cached)
            if share.is_ahead or share.drafts:
                works.append(flight.launch_open(request, share.drafts, edits))
            else:
                works.append(flight.launch(request, share.tokens, edits))
        self._is_line_open = not is_short
        if len(self._waiting) and not is_short:
            self._admit_waiting(budget, flight, works)
        if not works:
            return StepPlan(step, ())
        self._flights.append(flight)
        ends, self._left_seqs = tuple(self._left_seqs), []
        return StepPlan(step, tuple(works), ends)

    def _shares(self, step: StepId, budget: TokenBudget) -> list[_Share]:
        """What each running request may run, oldest first: decodes are served before chunks of prompts, then drafts."""
        shares: list[_Share] = []
        prompts: list[_Share] = []
        short = 0  # tokens left to compute of short prompts
        for request in self._running:
            remaining = request.cached.num_tokens - request.num_launched
            if remaining > 1:
                share = _Share(request, remaining)
                prompts.append(share)
                short += 0 if request.is_long else remaining
            elif remaining == 1 or request.may_run_ahead:
                share = _Share(request, 1, remaining < 1)
            else:
                continue  # its last token is in flight
            shares.append(share)
        decodes = len(shares) - len(prompts)
        budget.decode(decodes)
        budget.long_left = self._latency.rows_max(decodes + short)
        asks_door = bool(prompts) or self._policy is not None
        keeps_door = asks_door and bool(self._free_seqs) and self._admission.is_due(step)
        if prompts:
            are_long = [share.request.is_long for share in prompts]
            chunks = budget.share_out([share.tokens for share in prompts], are_long, keeps_door=keeps_door)
            for share, tokens in zip(prompts, chunks, strict=True):
                share.tokens = tokens
        if self._policy is not None:
            kept = budget.chunk_max if keeps_door else 0
            budget.tokens_left -= self._add_drafts(self._policy, shares, budget.tokens_left - kept)
        return [share for share in shares if share.tokens > 0] if prompts else shares

    def _add_drafts(self, policy: DraftPolicy, shares: list[_Share], room: int) -> int:
        """Guesses for the decodes, oldest first, `room` tokens of them at most. Returns how many."""
        left = max(0, room)
        asking = [share for share in shares if share.request.num_launched + 1 >= share.request.cached.num_tokens]
        rooms: list[tuple[Acceptance, int]] = []
        for share in asking:
            request = share.request
            if request.acceptance is None:
                request.acceptance = policy.acceptance()
            rooms.append((request.acceptance, max(0, request.drafts_room)))
        for share, drafts in zip(asking, policy.choose(rooms), strict=True):
            share.drafts = min(drafts, left)
            left -= share.drafts
        return max(0, room) - left

    def _has_room(self, share: _Share) -> bool:
        """Pages for what it is to run. Drafts go without before anyone gives up anything for them, and a request that
        would run ahead waits for what is in flight.
        """
        request = share.request
        if share.drafts or share.is_ahead:
            law(bool(self._flights) or not share.is_ahead, "%s is ahead of nothing", request.request_id)
            if self._cache.grow(request.cached, request.end_max(1 + share.drafts)):
                return True
            share.drafts = 0
            if share.is_ahead:
                return self._cache.grow(request.cached, request.end_max(1))
        length = request.num_launched + share.tokens
        return self._cache.grow(request.cached, length) or self._make_way(request, length)

    def _waits_for_fence(self, share: _Share) -> bool:
        """Whether it has no room only because its pages are those of a step in flight: next time it has, whoever is admitted."""
        request = share.request
        length = request.end_max(1) if share.is_ahead else request.num_launched + share.tokens
        return request.seq is not None and bool(self._flights) and self._cache.covers(request.cached, length)

    def _make_way(self, request: Request, length: int) -> bool:
        """Pages for `length` tokens are short: retract the youngest until they are not. False: `request` does not run now.

        Victims are younger than `request`, or itself. With a step in flight the pages of a victim are still fenced, so
        one victim a step is enough, and none if what is fenced already will do.
        """
        while True:
            if self._flights and self._cache.covers(request.cached, length):
                return False  # they wait behind the fence
            if len(self._running) == 1:
                law(bool(self._flights), "%s runs alone and %d tokens do not fit", request.request_id, length)
                return False
            victim = youngest(self._running) or request
            self._retract(victim)
            if victim is request or self._flights:
                return False
            if self._cache.grow(request.cached, length):
                return True

    def _admit_waiting(self, budget: TokenBudget, flight: Flight, works: list[Work]) -> None:
        """Admit in order of arrival while there are places, tokens and pages; who may pass whom is the line's to say."""
        chunk_max = budget.chunk_max if budget.long_left is None else self._latency.short_max
        if len(self._waiting) > 1:
            budget.keep_for_short(self._latency.short_max)
        for request in self._admission.open(flight.step, self._asks_fetching):
            if not self._free_seqs:
                return
            cached = request.cached
            if request.is_long and budget.long_left == 0:  # as it was when last looked at; a match is not for nothing
                self._admission.waits_for_tokens(request)
                continue
            match = self._cache.match_prefix(cached.key, cached.reusable)
            prefix_len = match.prefix_len
            remaining = cached.num_tokens - prefix_len
            request.is_long = not self._latency.is_short(remaining)
            chunk = budget.chunk(remaining, is_long=request.is_long)
            if budget.tokens_left == 0:
                return
            if chunk == 0:
                self._admission.waits_for_tokens(request)
                continue
            length = prefix_len + chunk
            if not self._admission.may_pass(request, is_short=chunk == remaining, is_long=remaining > chunk_max):
                continue
            terms = self._admission.terms(request, length, self._running, flight.step)
            if not self._cache.admit(cached, length, terms):
                law(bool(self._running or self._flights), "%s fits an empty pool and is refused", request.request_id)
                is_fenced = bool(self._flights) and self._cache.covers(cached, length, terms)
                is_soon = is_fenced or not request.is_long
                self._admission.refused(request, length, terms, flight.step, is_soon=is_soon)
                continue
            law(cached.prefix_len == prefix_len, "%s: %d matched, %d got", cached, prefix_len, cached.prefix_len)
            self._admission.admitted(request)
            self._start(request, match)
            budget.take(chunk, is_long=request.is_long)
            if not request.is_long:
                self._latency.short_ran()
            begins = BegunSequence(cached.key.lineage, cached.known, cached.draft_len)
            works.append(flight.launch(request, chunk, self._cache.take_edits(cached), begins))

    def _asks_fetching(self, request: Request, step: StepId | None) -> bool:
        terms = None
        if step is not None and self._free_seqs:
            terms = self._admission.terms(request, 0, self._running, step)
        is_fetching = self._cache.is_fetching(request.cached, terms)
        self._is_fetching |= is_fetching
        return is_fetching

    def _start(self, request: Request, match: PrefixMatch) -> None:
        """WAITING to RUNNING: the cache has just given it a holding."""
        request.state = RequestState.RUNNING
        request.seq = self._free_seqs.pop()
        request.runs += 1
        request.num_launched = request.cached.prefix_len
        request.outputs_at_admission = request.num_outputs
        if request.times.admitted_at is None:
            request.times.admitted_at = self._clock()
            request.cached_tokens = request.cached.prefix_len
            request.cached_source, request.read_tokens = request.cached.source_of(match)
            request.cache_miss = match.miss
        insort(self._running, request, key=lambda running: running.arrival)
        self._admissions += 1

    def settle(self, result: StepResult) -> list[Progress]:
        """Take the result of the oldest planned step: commit, append, stop. One `Progress` per request that has
        something to tell or ended."""
        flight = self._flights.popleft()
        law(flight.step == result.step, "step %d settles, step %d was next", result.step, flight.step)
        law(len(flight.launched) == len(result.samples), "step %d: works and results differ in number", result.step)
        progress: list[Progress] = []
        for index, launched in enumerate(flight.launched):
            request, samples = launched.request, result.samples[index]
            if request.runs != launched.run or request.seq is None:
                self._zombies += 1
                continue
            if launched.is_open:
                self._commit_open(launched, result.spans[index], len(samples))
            else:
                self._cache.commit(request.cached, launched.end)
                if request.cached.prefix_max is not None:
                    request.score(launched.end)
            if result.draft_lens:
                self._cache.commit_draft(request.cached, result.draft_lens[index])
            known = result.known[index] if result.known else ()
            if samples:
                progress.append(self._accept(request, samples, known))
            elif request.only_computes and launched.end == request.cached.num_tokens:
                self._finish(request, Outcome(Verdict.FINISHED, 0))
                progress.append(Progress(request, (), Stop(FinishReason.LENGTH), known))
            elif known:
                progress.append(Progress(request, (), known=known))
        if result.num_rows:
            self._latency.measured(result.num_rows, result.seconds)
        if self._policy is not None and flight.is_decode and result.num_rows:
            self._policy.measured(result.num_rows, result.seconds)
        return progress

    def _commit_open(self, launched: Launched, span: Span, num_samples: int) -> None:
        """What an open decode came to: its KV is final, also past a stop, and those ahead of it move on."""
        request = launched.request
        law(span.start == request.cached.num_tokens - 1, "%s ran from %d of %d tokens", request.request_id, span.start,
            request.cached.num_tokens)  # fmt: skip
        law(span.end <= launched.end, "%s ran to %d, places to %d", request.request_id, span.end, launched.end)
        law(0 < span.num_computed == num_samples, "%s: %d samples of %s", request.request_id, num_samples, span)
        self._cache.commit(request.cached, span.end)
        request.num_launched += span.num_computed - 1
        request.drafts_in_flight -= launched.drafts_max
        if self._policy is not None and request.acceptance is not None:
            self._policy.learn(request.acceptance, span.num_drafted, span.num_computed - 1)
            self._drafted += span.num_drafted
            self._accepted += span.num_computed - 1

    def _accept(self, request: Request, samples: tuple[Sample, ...], known: tuple[Sample, ...]) -> Progress:
        """Append samples up to the first stop; the rest is dropped with its request."""
        if request.times.first_token_at is None:
            request.times.first_token_at = self._clock()
        for count, sample in enumerate(samples, 1):
            request.append(sample.token)
            stop = stop_at(request, sample.token)
            if stop is not None:
                self._finish(request, Outcome(Verdict.FINISHED, request.num_outputs))
                return Progress(request, samples[:count], stop, known)
        if not request.is_published:
            request.is_published = True
            self._cache.cache_unfinished_req(request.cached)
        return Progress(request, samples, known=known)

    # -- ends

    def end(self, request_id: RequestId, reason: FinishReason) -> Progress:
        """End a request now, from outside: INTERRUPT keeps what was generated, if anything was; ABORT undoes it."""
        law(reason in (FinishReason.INTERRUPT, FinishReason.ABORT), "%s is not asked for", reason)
        request = self._requests.get(request_id)
        if request is None:
            raise NotFoundError(f"no request {request_id} is alive", param="request_id")
        if reason is FinishReason.INTERRUPT and request.num_outputs > 0:
            self._finish(request, Outcome(Verdict.FINISHED, request.num_outputs))
            return Progress(request, (), Stop(FinishReason.INTERRUPT))
        self._finish(request, Outcome(Verdict.ABORTED))
        return Progress(request, (), Stop(FinishReason.ABORT))

    def _finish(self, request: Request, outcome: Outcome) -> None:
        if request.state is RequestState.RUNNING:
            self._leave(request)
        else:
            self._waiting.remove(request)
        release_kv_cache(self._cache, request.cached, outcome)
        request.state = RequestState.FINISHED
        del self._requests[request.request_id]
        self._admission.reopen()

    def _retract(self, request: Request) -> None:
        """RUNNING to WAITING: its pages become obtainable, its tokens stay."""
        self._leave(request)
        release_kv_cache(self._cache, request.cached, Outcome(Verdict.RETRACTED))
        request.state = RequestState.WAITING
        self._retracted_tokens += request.num_launched
        request.num_launched = request.drafts_in_flight = 0
        request.num_retractions += 1
        request.is_published = False
        request.is_long = False
        self._waiting.push(request)
        self._retractions += 1
        self._admission.reopen()

    def _leave(self, request: Request) -> None:
        """Give up the batch place. A step in flight may still read its row: rows are edited in step order."""
        if request.seq is None:
            raise CorruptionError(f"{request.request_id} runs without a place")
        self._free_seqs.append(request.seq)
        self._left_seqs.append(request.seq)
        request.seq = None
        self._running.remove(request)
