"""Sessions, for those who hold them: open, turn, rewind, fork, close. Turns them into plain requests of the engine below.

Decorates an engine loop: what is asked of it is refused at the door before any object exists, or becomes a request that
the engine runs like any other. Knows tokens and turns; of pages only how many a session holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sojourn.cache.protocol import CacheKey
from sojourn.core.bounds import check_range
from sojourn.core.clock import Clock
from sojourn.core.errors import ClientError, CorruptionError, NotFoundError, law
from sojourn.core.ids import RequestId
from sojourn.core.step import Pool, TokenArray
from sojourn.engine.events import Event, FinishedEvent, FinishReason, Notice
from sojourn.engine.loop import EngineLoop
from sojourn.scheduler.request import StopConditions, make_request
from sojourn.sessions.door import checked_token_ids
from sojourn.sessions.expiry import Deadlines
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.misses import Miss
from sojourn.sessions.recorder import KeptStatistics, Recorder
from sojourn.sessions.session import RunningTurn, Session
from sojourn.sessions.store import NoStore, StoredSession, StoreError, complaint_of
from sojourn.sessions.turns import SessionState, TurnEvent, after
from sojourn.sessions.values import (
    CloseReply,
    HistoryView,
    ServiceConfig,
    SessionClosed,
    SessionExistsError,
    SessionSummary,
    SlotKeeper,
    TurnParams,
    UnstoredEvent,
)

__all__ = [
    "CloseReply",
    "HistoryView",
    "ServiceConfig",
    "SessionClosed",
    "SessionService",
    "SessionSummary",
    "SlotKeeper",
    "TurnParams",
    "UnstoredEvent",
]

IdSource = Callable[[], str]  # a fresh id each time

PRIORITY_MAX = 100  # and as far below 0
_SESSIONS_SHOWN = 32  # in a report


class SessionService:
    """Owns the sessions. Lives on the engine's thread, as its crank."""

    def __init__(
        self,
        engine: EngineLoop,
        slots: SlotKeeper,
        config: ServiceConfig,
        *,
        clock: Clock,
        new_id: IdSource,
        recorder: Recorder | None = None,
    ) -> None:
        """`recorder`: what outlives this process; None: nothing does."""
        self._engine = engine
        self._slots = slots
        self._config = config
        self._clock = clock
        self._new_id = new_id
        self._sessions: dict[str, Session] = {}
        self._deadlines = Deadlines()  # of idle sessions
        self._turns: dict[RequestId, Session] = {}  # requests that are some session's running turn
        self._outbox: list[Event | Notice] = []  # what happened between two steps
        self._recorder = Recorder(NoStore(), clock) if recorder is None else recorder
        self._finished: list[tuple[Session, TurnRecord, FinishedEvent]] = []  # turns whose ends are not kept yet

    # -- sessions

    def open(
        self,
        session_id: str | None = None,
        *,
        namespace: str = "",
        idle_timeout_s: float | None = None,
        priority: int = 0,
    ) -> str:
        """A new, empty session. KV is shared with others of its namespace only. `idle_timeout_s` None: the service's."""
        check_range("priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
        name = self._new_id() if session_id is None else session_id
        timeout_s = self._config.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
        self._add(Session(name, namespace, timeout_s, priority=priority))
        return name

    def close(self, session_id: str) -> CloseReply:
        """End the session: now, or when its running turn ends."""
        session = self._get(session_id)
        following = after(session.state, TurnEvent.CLOSE)
        if session.state is not SessionState.CLOSING:
            self._recorder.removed(session)  # the last that may refuse; a turn that runs on is nobody's to resume
        session.state = following
        if session.state is SessionState.CLOSING:
            return CloseReply(deferred=True, freed_pages=None)
        return CloseReply(deferred=False, freed_pages=self._remove(session))

    def rewind(self, session_id: str, *, length: int | None = None, turn: int | None = None) -> int:
        """Go back to `length` tokens, or to the end of a finished `turn`; the rest is forgotten. The new length."""
        session = self._get(session_id)
        following = after(session.state, TurnEvent.BRANCH)
        where = session.branch_length(length, turn)
        self._recorder.rewound(session, where)  # the last that may refuse
        session.state, session.killed = following, None
        session.history.rewind(where)
        self._recorder.shortened(session)
        self._slots.rewind_session(session.session_id, where)
        return where

    def fork(
        self, session_id: str, new_id: str | None = None, *, length: int | None = None, turn: int | None = None
    ) -> str:
        """A new session that begins with the first `length` tokens of this one, or with all up to a finished `turn`.

        A running turn is not part of it. KV is shared through the cache; nothing is copied but tokens.
        """
        session = self._get(session_id)
        where = session.branch_length(session.history.settled_len if length is None and turn is None else length, turn)
        self._check_bound(where, "length")
        name = self._new_id() if new_id is None else new_id
        copy = session.history.fork(where)
        twin = Session(name, session.namespace, session.idle_timeout_s, copy, has_begun=True, priority=session.priority)
        self._add(twin, Miss.FORK)
        return name

    def copy(self, session_id: str) -> StoredSession:
        """All that is kept of the session, as it stands: a running turn is no part of it."""
        return self._get(session_id).stored(0.0)

    def take_in(self, stored: StoredSession) -> None:
        """Open a session that was kept elsewhere; without a timeout of its own it has the service's. ClientError, and nothing
        done, for one that cannot be."""
        complaint = complaint_of(stored.tokens, stored.turns, stored.next_turn, self._config.vocab_size)
        if complaint is not None:
            raise ClientError(f"this is no session's history: {complaint}", param="file")
        check_range("priority", stored.priority, -PRIORITY_MAX, PRIORITY_MAX)
        num_tokens, longest = len(stored.tokens), self._config.context_length
        if num_tokens > longest:
            raise ClientError(f"the session has {num_tokens:,} tokens; the context is {longest:,}", param="file")
        self._check_bound(num_tokens, "file")
        if stored.idle_timeout_s is None:
            stored = replace(stored, idle_timeout_s=self._config.idle_timeout_s)
        self._add(Session.of(stored))

    def restore(self) -> int:
        """Open what the store kept: once, before anything else. How many there are; StoreError for a damaged one."""
        stored_sessions = self._recorder.load()
        for stored in stored_sessions:
            complaint = complaint_of(stored.tokens, stored.turns, stored.next_turn, self._config.vocab_size)
            if complaint is not None:
                raise StoreError(f"the stored session {stored.session_id} is damaged: {complaint}")
            self._admit(Session.of(stored), Miss.RESTORED, self._recorder.idle_for(stored))
        return len(stored_sessions)

    def history(self, session_id: str) -> HistoryView:
        session = self._get(session_id)
        return HistoryView(session.state, session.history.tokens(), session.history.turns)

    def summary(self, session_id: str) -> SessionSummary:
        session = self._get(session_id)
        history = session.history
        return SessionSummary(
            session.state,
            history.settled_len,
            history.num_turns,
            session.idle_timeout_s,
            session.killed,
            session.priority,
        )

    def pages_held(self, session_id: str) -> int:
        """Own and leased pages, over all pools."""
        return self._slots.pages_held(self._get(session_id).session_id)

    def pages_by_pool(self, session_id: str) -> dict[Pool, tuple[int, int]]:
        """(own, leased) pages per pool."""
        return self._slots.pages_by_pool(self._get(session_id).session_id)

    @property
    def num_closing(self) -> int:
        """Sessions that end with their running turn."""
        return sum(session.state is SessionState.CLOSING for session in self._turns.values())

    def kept(self) -> KeptStatistics | None:
        """What the store has; None: there is none."""
        return self._recorder.statistics()

    def session_ids(self) -> tuple[str, ...]:
        return tuple(self._sessions)

    # -- turns and requests

    def start_turn(
        self,
        session_id: str,
        new_ids: Sequence[int],
        params: TurnParams,
        *,
        note: bytes = b"",
        cache_namespace: str | None = None,
    ) -> RequestId:
        """Run a turn over the history and `new_ids`. Refused whole, or started; a refusal changes nothing.

        `note` is kept with the turn, if it stands. `cache_namespace`: another one than the session was opened with, for
        this and all later turns. Only a first turn can choose.
        """
        session = self._get(session_id)
        following = after(session.state, TurnEvent.START)
        self._recorder.check()
        ids = checked_token_ids("input_ids", new_ids, self._config.vocab_size)
        total = session.history.settled_len + len(ids)
        if total == 0:
            raise ClientError("the session is empty: its first turn needs at least 1 token", param="input_ids")
        max_new_tokens = self._within_bound(total, self._max_new_tokens(total, params))
        self._engine.scheduler.check(total, max_new_tokens)
        namespace = session.namespace if cache_namespace is None else cache_namespace
        if namespace != session.namespace and session.has_begun:
            raise ClientError("the cache of a session is chosen with its first turn, not later", param="cache_salt")
        request_id = RequestId(self._new_id())
        key = CacheKey(namespace, session.session_id, session.priority)
        before = session.history.settled_len
        self._submit(request_id, session.history.prompt(ids), before, key, max_new_tokens, params)  # last to refuse
        session.namespace, session.has_begun = namespace, True
        session.state, session.killed = following, None
        session.turn = RunningTurn(request_id, session.history.begin(ids, note))
        self._recorder.begun(session, session.turn.claim.turn, ids, note)
        self._turns[request_id] = session
        self._deadlines.clear(session.session_id)
        return request_id

    def submit(self, prompt_ids: Sequence[int], params: TurnParams, *, namespace: str = "") -> RequestId:
        """A request that stands alone: no session, nothing kept but what the cache shares."""
        ids = checked_token_ids("prompt", prompt_ids, self._config.vocab_size)
        max_new_tokens = self._max_new_tokens(len(ids), params)
        self._engine.scheduler.check(len(ids), max_new_tokens)
        request_id = RequestId(self._new_id())
        self._submit(request_id, ids, 0, CacheKey(namespace), max_new_tokens, params)
        return request_id

    def interrupt(self, session_id: str) -> bool:
        """Finish the running turn now and keep what was said; before its first token it is undone. False: none runs."""
        turn = self._get(session_id).turn
        if turn is None:
            return False
        self.interrupt_request(turn.request_id)
        return True

    def abort(self, session_id: str, message: str = "") -> bool:
        """Undo the running turn: the history is as it was before. False: none runs."""
        turn = self._get(session_id).turn
        if turn is None:
            return False
        self.abort_request(turn.request_id, message)
        return True

    def interrupt_request(self, request_id: RequestId) -> None:
        """As `interrupt`, for any live request; NotFoundError for one that is not."""
        self._report(self._engine.interrupt(request_id))
        self._keep()

    def abort_request(self, request_id: RequestId, message: str = "") -> None:
        self._report(self._engine.abort(request_id, message))
        self._keep()

    # -- the crank

    @property
    def has_work(self) -> bool:
        return self._engine.has_work or bool(self._outbox)

    def wake_in(self) -> float | None:
        """Seconds until the session that is idle longest expires, or the engine or the store has to be seen to."""
        first = self._deadlines.first()
        expiry_in = None if first is None else max(0.0, first - self._clock())
        waits = (expiry_in, self._engine.wake_in(), self._recorder.wake_in())
        return min((wait for wait in waits if wait is not None), default=None)

    def shut_down(self) -> None:
        """No step follows: waits for what still runs."""
        self._engine.shut_down()

    def report(self, error: CorruptionError) -> str:
        """What the engine has to say, and which sessions were open."""
        shown = list(self._sessions.values())[:_SESSIONS_SHOWN]
        lines = [f"  {one.session_id}: {one.state.value}, {one.history.settled_len} tokens" for one in shown]
        return "\n".join([self._engine.report(error), f"open sessions: {len(self._sessions)}", *lines])

    def step(self) -> list[Event | Notice]:
        """One step of the engine, the histories settled by what it finished, and what has expired closed.

        What these events acknowledge is in the store when they are returned.
        """
        for event in self._engine.step():
            self._report(event)
        self._expire()
        self._keep()
        events, self._outbox = self._outbox, []
        return events

    # -- inside

    def _add(self, session: Session, origin: Miss = Miss.RESTORED) -> None:
        """A session that was not there before; refused, or kept and open."""
        if session.session_id in self._sessions:
            raise SessionExistsError(session.session_id)
        self._recorder.added(session)
        self._admit(session, origin)

    def _admit(self, session: Session, origin: Miss, idle_for: float = 0.0) -> None:
        self._sessions[session.session_id] = session
        if session.has_begun:
            key = CacheKey(session.namespace, session.session_id, session.priority)
            self._slots.begin(key, session.history.settled_len, origin)
        self._rest(session, idle_for)

    def _rest(self, session: Session, idle_for: float = 0.0) -> None:
        """The session is idle from now on, or has been for some time."""
        limits = [limit for limit in (session.idle_timeout_s, self._config.idle_max_s) if limit is not None]
        if limits:
            self._deadlines.set(session.session_id, self._clock() + max(0.0, min(limits) - idle_for))

    def _get(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFoundError(f"no session {session_id} is open", param="session_id")
        return session

    def _move(self, session: Session, event: TurnEvent) -> None:
        session.state = after(session.state, event)

    def _max_new_tokens(self, num_prompt: int, params: TurnParams) -> int:
        """A prompt that leaves no room is the scheduler's to refuse, so never less than 1 by itself; 0 if asked for."""
        if params.max_new_tokens is None:
            return max(1, self._config.context_length - num_prompt)
        return params.max_new_tokens

    def _within_bound(self, num_prompt: int, max_new_tokens: int) -> int:
        """New tokens that a session with such a prompt has room for. ClientError if it has none."""
        bound = self._config.session_tokens_max
        if bound is None:
            return max_new_tokens
        if num_prompt >= bound:
            raise ClientError(
                f"the session would have {num_prompt:,} tokens with this turn; the bound of one is {bound:,}",
                param="input_ids",
                code="session_tokens_exceeded",
            )
        return min(max_new_tokens, bound - num_prompt)

    def _check_bound(self, num_tokens: int, param: str) -> None:
        """Raise ClientError for a new session of so many tokens, if one may not have them."""
        bound = self._config.session_tokens_max
        if bound is not None and num_tokens > bound:
            raise ClientError(
                f"the session would have {num_tokens:,} tokens; the bound of one is {bound:,}",
                param=param,
                code="session_tokens_exceeded",
            )

    def _submit(
        self,
        request_id: RequestId,
        prompt: TokenArray,
        num_history: int,
        key: CacheKey,
        max_new_tokens: int,
        params: TurnParams,
    ) -> None:
        stop = StopConditions(self._config.eos_ids, params.stop_ids, params.ignore_eos, params.stop_matcher)
        request = make_request(
            request_id,
            prompt,
            key=key,
            sampling=params.sampling,
            max_new_tokens=max_new_tokens,
            stop=stop,
            now=self._clock(),
            logprobs_from=None if params.logprobs_from is None else num_history + params.logprobs_from,
        )
        self._engine.submit(request)

    def _report(self, event: Event) -> None:
        """Pass an event on; a finished turn settles its session first."""
        self._outbox.append(event)
        if isinstance(event, FinishedEvent):
            session = self._turns.pop(event.request_id, None)
            if session is not None:
                self._settle(session, event)
        elif (speaking := self._turns.get(event.request_id)) is not None:
            self._recorder.said(speaking, event.samples)

    def _settle(self, session: Session, event: FinishedEvent) -> None:
        turn = session.turn
        law(turn is not None and turn.request_id == event.request_id, "%s ends a turn of another", event.request_id)
        if turn is None:
            return
        if event.reason is FinishReason.ABORT:
            session.history.abort(turn.claim)
            self._recorder.undone(session)
            self._move(session, TurnEvent.ABORT)
        else:
            record = session.history.commit(turn.claim, event.output_ids, event.reason.value)
            self._recorder.ended(session, record)
            self._finished.append((session, record, event))
            self._move(session, TurnEvent.FINISH)
        session.turn = None
        if session.state is SessionState.CLOSED:
            self._outbox.append(self._closed(session, "client"))
        else:
            self._rest(session)

    def _keep(self) -> None:
        """Have the store keep what just ended, all of it in one. Turns that it cannot keep are undone, and say so."""
        try:
            self._recorder.flush()
        except StoreError as error:
            for session, record, event in self._finished:
                if session.state is not SessionState.CLOSED:
                    session.history.revoke(record)
                    self._recorder.revoked(session, record)
                    self._slots.rewind_session(session.session_id, record.start)
                self._outbox[self._outbox.index(event)] = _unstored(event, error)
        self._finished.clear()

    def _expire(self) -> None:
        """Close those whose time is up, and those that the others need the room of."""
        due = self._deadlines.take_due(self._clock()) if self._deadlines.first() is not None else []
        surplus = self._recorder.surplus(self._is_idle) if self._recorder.is_bounded else []
        for session_id in dict.fromkeys([*due, *surplus]):
            session = self._sessions[session_id]
            self._move(session, TurnEvent.EXPIRE)
            self._outbox.append(self._closed(session, self._why_due(session) if session_id in due else "bytes"))

    def _is_idle(self, session_id: str) -> bool:
        return self._sessions[session_id].state is SessionState.IDLE

    def _why_due(self, session: Session) -> str:
        own, most = session.idle_timeout_s, self._config.idle_max_s
        return "age" if own is None or (most is not None and most < own) else "timeout"

    def _closed(self, session: Session, why: str) -> SessionClosed:
        self._recorder.left(session)
        freed = self._remove(session)
        history = session.history
        return SessionClosed(session.session_id, why, freed, history.settled_len, len(history.turns))

    def _remove(self, session: Session) -> int:
        """A session in state CLOSED leaves; returns the pages its slot owned."""
        law(session.state is SessionState.CLOSED, "session %s leaves while %s", session.session_id, session.state)
        del self._sessions[session.session_id]
        self._deadlines.clear(session.session_id)
        return self._slots.release_session(session.session_id)


def _unstored(event: FinishedEvent, error: StoreError) -> UnstoredEvent:
    return UnstoredEvent(
        request_id=event.request_id,
        reason=FinishReason.ABORT,
        output_ids=event.output_ids,
        usage=event.usage,
        message=f"the turn is undone, since it could not be stored: {error}",
    )
