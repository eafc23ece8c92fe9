"""The whole engine under test: sessions over the loop with steps in flight, the scheduler, the caches and a fake back end.

Beside it a model that a child could keep: a list of tokens per session, and for each request what it must say if nobody
ends it, whatever was guessed and however far it ran ahead.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from sojourn.core.errors import ClientError, ConflictError
from sojourn.core.ids import RequestId
from sojourn.engine.events import FinishReason
from sojourn.pages.sizing import NUM_RESERVED
from sojourn.scheduler.request import RequestState
from sojourn.sessions.service import TurnParams
from sojourn.sessions.turns import SessionState
from tests.support.fake_backend import EOS_ID, expected_completion
from tests.support.session_world import SessionWorld
from tests.support.world import Record, WorldConfig, check_all_free, check_identity

STEPS_MAX = 8_000


class StopAfter:
    """A stop matcher that fires at the n-th token it is fed, so a token fed twice or not at all shows."""

    def __init__(self, count: int) -> None:
        self.count = count

    def feed(self, token_id: int) -> str | None:
        self.count -= 1
        return None if self.count else "enough"


@dataclass(frozen=True)
class Ask:
    """What a turn or a plain request asks for. `stop_after` 0: no stop matcher."""

    params: TurnParams
    stop_after: int = 0

    def fresh(self) -> TurnParams:
        return replace(self.params, stop_matcher=StopAfter(self.stop_after)) if self.stop_after else self.params


@dataclass(eq=False)
class Alive:
    """A request that has not been told its end; `expected` and `reason` are those of an undisturbed run."""

    request_id: RequestId
    name: str | None  # its session
    record: Record
    prompt: list[int]
    expected: list[int]
    reason: FinishReason


@dataclass(eq=False)
class Known:
    """What the model knows of a session."""

    history: list[int]
    timeout_s: float | None
    rests_since: float
    namespace: str
    has_begun: bool = False  # its first turn chose the namespace for good
    is_closing: bool = False
    turn: Alive | None = None


class EngineWorld:
    """Every event either does what the model says, or is refused for the reason the model gives and changes nothing."""

    def __init__(self, config: WorldConfig, *, depth: int, publishes: bool, idle_timeout_s: float | None) -> None:
        self.config = config
        self.timeout_s = idle_timeout_s
        self.inside = SessionWorld(
            config, eos_ids=frozenset({EOS_ID}), idle_timeout_s=idle_timeout_s, depth=depth, publishes=publishes
        )
        self.service, self.clock, self.slots = self.inside.service, self.inside.clock, self.inside.slots
        self.scheduler, self.check = self.inside.world.scheduler, self.inside.world.check
        self.known: dict[str, Known] = {}
        self.alive: dict[RequestId, Alive] = {}
        self.ended: list[tuple[Alive, FinishReason, list[int]]] = []  # by us; the event comes with the next step
        self.leaving: dict[str, tuple[bool, int]] = {}  # closed; the notice comes with the next step
        self.marks: Counter[str] = Counter()
        self.marks[f"pages of {config.page_size}"] += 1
        self.marks[f"depth {depth}"] += 1

    def audit(self) -> None:
        """After an event; a step has been checked as it ended."""
        self.marks["fences"] += any(ledger.num_fenced for ledger in self.slots.book.ledgers)
        for name, known in self.known.items():
            slot = self.slots.slot(name)
            if known.turn is None and slot is not None and slot.holding is not None:
                assert slot.holding.kv_allocated_len <= len(known.history), "a tail is kept past the finish"
                pages = self.slots.book.layout.pages_for(slot.holding.kv_allocated_len)
                assert all(listed.size == pages for listed in slot.holding.lists), "pages are kept past the finish"
        for alive in self.alive.values():
            request = self.scheduler.get(alive.request_id)
            assert request is not None, "alive, and the scheduler does not know it"
            if not self.scheduler.statistics().in_flight:
                assert request.drafts_in_flight == 0, "nothing is in flight, and drafts are"
                holding = request.cached.holding
                assert holding is None or request.num_launched == holding.kv_committed_len
            slot = None if alive.name is None else self.slots.slot(alive.name)
            if slot is not None and request.state is RequestState.RUNNING:
                assert slot.turn is request.cached, "a running turn has lost its claim"
                assert slot.holding is None, "a running turn's slot holds pages"
                assert slot.draft is None, "a running turn's slot holds draft pages"
        for name in self.known:
            slot = self.slots.slot(name)
            if slot is not None and slot.draft is not None:
                read = self.slots.book.layout.pages_for(slot.draft.kv_committed_len)
                assert slot.draft.num_pages == read, "draft pages past the end of a turn"

    # -- sessions
    def open(self, namespace: str, timeout_s: float | None) -> None:
        name = self.service.open(namespace=namespace, idle_timeout_s=timeout_s)
        self.known[name] = Known([], self.timeout_s if timeout_s is None else timeout_s, self.clock.now, namespace)

    def close(self, name: str) -> None:
        known = self.known[name]
        own = sum(own for own, _ in self.slots.pages_by_pool(name).values())
        reply = self.service.close(name)
        assert reply.deferred == (known.turn is not None)
        if reply.deferred:
            known.is_closing = True
            self.marks["deferred closes"] += 1
        else:
            assert reply.freed_pages == own
            del self.known[name]
            self.marks["closes"] += 1

    def rewind(self, name: str, length: int) -> None:
        known = self.known[name]
        if known.turn is not None:
            self._refused("rewinds under a turn", ConflictError, None, lambda: self.service.rewind(name, length=length))
            return
        self.service.rewind(name, length=length)
        known.history = known.history[:length]
        self.marks["rewinds"] += 1

    def fork(self, name: str, length: int) -> None:
        known = self.known[name]
        fork = self.service.fork(name, length=length)
        self.known[fork] = Known(known.history[:length], known.timeout_s, self.clock.now, known.namespace, True)
        self.marks["forks" if known.turn is None else "forks under a turn"] += 1

    # -- requests
    def turn(self, name: str, new: list[int], ask: Ask, namespace: str | None = None) -> None:
        """`namespace`: another one than the session was opened with; only its first turn may say so."""
        known = self.known[name]
        prompt = known.history + new
        refusal = self._refusal(len(prompt), ask)
        if known.turn is not None:
            refusal = "overlaps", ConflictError, None
        elif refusal is None and known.has_begun and namespace not in (None, known.namespace):
            refusal = "another namespace", ClientError, None
        if refusal is not None:
            self._refused(*refusal, lambda: self.service.start_turn(name, new, ask.fresh(), cache_namespace=namespace))
            return
        known.has_begun, known.namespace = True, known.namespace if namespace is None else namespace
        request_id = self.service.start_turn(name, new, ask.fresh(), cache_namespace=namespace)
        known.turn = self._submitted(request_id, name, prompt, ask)

    def plain(self, prompt: list[int], ask: Ask, namespace: str) -> None:
        refusal = self._refusal(len(prompt), ask)
        if refusal is not None:
            self._refused(*refusal, lambda: self.service.submit(prompt, ask.fresh(), namespace=namespace))
            return
        self._submitted(self.service.submit(prompt, ask.fresh(), namespace=namespace), None, prompt, ask)
        self.marks["plain"] += 1

    def end(self, alive: Alive, *, undo: bool) -> None:
        """Abort or interrupt, in whatever state the request is."""
        self.marks[f"{'aborts' if undo else 'interrupts'} {self._state(alive)}"] += 1
        (self.service.abort_request if undo else self.service.interrupt_request)(alive.request_id)
        said = list(alive.record.tokens)
        undone = undo or not said
        self.ended.append((alive, FinishReason.ABORT if undone else FinishReason.INTERRUPT, said))
        self._left(alive, None if undone else said)

    def end_nothing(self, name: str) -> None:
        """No turn runs, so nothing is ended."""
        assert not self.service.abort(name)
        assert not self.service.interrupt(name)

    # -- time
    def step(self) -> None:
        """One step, and what it told compared with the model."""
        checks = self.check.checks
        self.inside.step()
        if self.check.checks == checks:  # nothing has retired yet
            self.check.check()
        for alive, reason, said in self.ended:
            assert alive.record.reason is reason
            assert alive.record.tokens == said
        self.ended.clear()
        for alive in [alive for alive in self.alive.values() if alive.record.end is not None]:
            self._finished(alive)
        self._hear_notices()

    def run(self) -> None:
        for _ in range(STEPS_MAX):
            if not self.service.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {STEPS_MAX} steps: {self.scheduler.statistics()}")

    def calm(self) -> None:
        """Liveness: once nothing runs, the longest prompt that is not refused has the pool to itself."""
        self.run()
        longest = min(self.config.context, min(self.config.totals) * self.config.page_size)
        ask = Ask(TurnParams(max_new_tokens=1))
        fitting = next((n for n in range(longest, 0, -1) if self._refusal(n, ask) is None), 0)
        if fitting:
            self.plain([3] * fitting, ask, "")
            self.run()
            self.marks["calms"] += 1

    def wind_down(self) -> None:
        """Everything ends and every page comes back."""
        self.run()
        self.step()
        assert not self.alive
        assert sorted(self.known) == sorted(self.service.session_ids())
        for name, known in list(self.known.items()):
            self._compare(name, known)
            self.close(name)
        check_identity(self.slots)
        check_all_free(self.slots)
        check_identity(self.slots)
        self._count()

    # -- inside
    def _submitted(self, request_id: RequestId, name: str | None, prompt: list[int], ask: Ask) -> Alive:
        params, room = ask.params, self.config.context - len(prompt)
        count = room if params.max_new_tokens is None else min(room, params.max_new_tokens)
        ending = params.stop_ids if params.ignore_eos else params.stop_ids | {EOS_ID}
        expected = expected_completion(prompt, count, ending, params.sampling)
        is_stopped = bool(expected) and expected[-1] in ending
        if 0 < ask.stop_after <= len(expected):
            expected, is_stopped = expected[: ask.stop_after], True
        record = self.inside.records.setdefault(request_id, Record())
        reason = FinishReason.STOP if is_stopped else FinishReason.LENGTH
        alive = self.alive[request_id] = Alive(request_id, name, record, prompt, expected, reason)
        return alive

    def _refusal(self, num_prompt: int, ask: Ask) -> tuple[str, type[ClientError], str | None] | None:
        """Why a request must be refused: mark, error and code."""
        config, size = self.config, self.config.page_size
        if num_prompt == 0:
            return "empty", ClientError, None
        if num_prompt >= config.context:
            return "too long for the context", ClientError, "context_length_exceeded"
        wanted = ask.params.max_new_tokens
        longest = config.context if wanted is None else min(config.context, num_prompt + max(1, wanted))
        full = -(-(longest - 1) // size)
        window = min(full, 2 * (-(-config.window // size) + 1) + -(-config.chunk_tokens_max // size))
        needs = (full, window)[: len(config.totals)]
        if any(need > total - NUM_RESERVED for need, total in zip(needs, config.totals, strict=True)):
            return "too long for the pool", ClientError, "capacity_exceeded"
        return None

    def _refused(self, mark: str, kind: type[ClientError], code: str | None, act: Callable[[], object]) -> None:
        before = self._picture()
        error = _error_of(act)
        assert isinstance(error, kind), f"{mark}: {error}"
        assert error.code == code
        assert self._picture() == before, "a refusal changed something"
        self.marks[f"refused: {mark}"] += 1

    def _picture(self) -> tuple[object, ...]:
        owners = tuple(ledger.owners.tobytes() for ledger in self.slots.book.ledgers)
        turns = tuple(None if (slot := self.slots.slot(name)) is None else slot.turn for name in self.known)
        summaries = tuple(self.service.summary(name) for name in self.known)
        return owners, turns, summaries, self.scheduler.statistics(), self.service.session_ids()

    def _state(self, alive: Alive) -> str:
        request = self.scheduler.get(alive.request_id)
        assert request is not None, "alive, and the scheduler does not know it"
        cached = request.cached
        if request.state is RequestState.WAITING:
            return "waiting" if request.num_retractions == 0 else "retracted"
        if request.num_launched < cached.num_prompt:
            return "between chunks"
        if request.num_launched < cached.num_tokens:
            return "decoding"
        is_last = len(alive.record.tokens) + 1 >= len(alive.expected)
        return "in the step that finishes" if is_last else "in flight"

    def _left(self, alive: Alive, said: list[int] | None) -> None:
        """The request is over; what it said stands, unless None."""
        del self.alive[alive.request_id]
        if alive.name is None:
            return
        known = self.known[alive.name]
        assert known.turn is alive
        known.turn, known.rests_since = None, self.clock.now
        if said is not None:
            known.history = alive.prompt + said
        if known.is_closing:
            self.leaving[alive.name] = False, len(known.history)
            del self.known[alive.name]
        else:
            self._compare(alive.name, known)

    def _finished(self, alive: Alive) -> None:
        end = alive.record.end
        assert end is not None
        assert alive.record.tokens == alive.expected, "not what an undisturbed run says"
        assert end.reason is alive.reason
        assert end.usage.prompt_tokens == len(alive.prompt)
        assert end.usage.cached_tokens < len(alive.prompt)
        assert end.usage.completion_tokens == len(alive.expected)
        self.marks[f"ends by {end.reason.value}"] += 1
        self._left(alive, alive.expected)

    def _compare(self, name: str, known: Known) -> None:
        view = self.service.history(name)
        assert view.token_ids.tolist() == known.history
        assert view.state is (SessionState.IDLE if known.turn is None else SessionState.RUNNING)

    def _hear_notices(self) -> None:
        """Deferred closes end with their turn; idle sessions expire exactly when their time is up."""
        for notice in self.inside.closed:
            if notice.is_expired:
                known = self.known.pop(notice.session_id)
                assert known.turn is None
                assert self._is_due(known), "expired too early"
                assert notice.num_tokens == len(known.history)
                self.marks["expiries"] += 1
            else:
                assert (False, notice.num_tokens) == self.leaving.pop(notice.session_id)
        self.inside.closed.clear()
        assert not self.leaving, "a close was never told"
        assert not any(self._is_due(known) for known in self.known.values()), "expired too late"

    def _is_due(self, known: Known) -> bool:
        due = known.turn is None and known.timeout_s is not None
        return due and known.rests_since + (known.timeout_s or 0) <= self.clock.now

    def _count(self) -> None:
        slots, scheduler, marks = self.slots.slot_statistics(), self.scheduler.statistics(), self.marks
        marks["resumes"] += slots.resumes
        marks["rematches"] += slots.rematches
        marks["demotions"] += slots.demotions
        marks["retractions"] += scheduler.retractions
        marks["zombies"] += scheduler.zombies
        marks["overshoots"] += slots.overshoots
        marks["drafts accepted"] += scheduler.accepted
        marks["drafts rejected"] += scheduler.drafted - scheduler.accepted
        marks["steps ahead"] += self.check.ahead
        marks["drafts ahead"] += self.check.drafts_ahead
        marks["mixed steps"] += self.check.mixed
        if (model := self.inside.world.draft_model) is not None:
            marks["draft model accepted"] += scheduler.accepted
            marks["draft model resumes"] += model.resumes
            marks["draft model catches up"] += model.catch_ups
            marks["draft model dropped"] += self.slots.statistics()[-1].evicted
        marks["slides"] += self.check.slides
        tier = self.slots.tier_statistics()
        if tier is not None:
            marks["fetches"] += tier.fetches
            marks["fetched pages"] += tier.fetched_pages
            marks["fetched tails"] += tier.fetched_tokens
            marks["fetches failed"] += tier.failed
            marks["fetches lost"] += tier.lost
            marks["fetches slow"] += tier.slow
        radix = self.inside.world.radix
        if radix is not None:
            tree = radix.tree_statistics()
            marks["full evictions"] += tree.full_pages_evicted
            marks["swa evictions"] += tree.swa_pages_evicted
            marks["splits"] += tree.splits
            marks["merges"] += tree.merges


def _error_of(act: Callable[[], object]) -> ClientError | None:
    try:
        act()
    except ClientError as error:
        return error
    return None
