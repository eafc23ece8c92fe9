"""Sessions, for those who hold them: open, turn, rewind, fork, close. Turns them into plain requests of the engine below.

Decorates an engine loop: what is asked of it is refused at the door before any object exists, or becomes a request that
the engine runs like any other. Knows tokens and turns; of pages only how many a session holds.
"""

from collections.abc import Callable, Sequence

from sojourn.cache.protocol import CacheKey
from sojourn.core.clock import Clock
from sojourn.core.errors import ClientError, ConflictError, CorruptionError, NotFoundError, law
from sojourn.core.ids import RequestId
from sojourn.core.step import Pool, TokenArray
from sojourn.engine.events import Event, FinishedEvent, FinishReason, Notice
from sojourn.engine.loop import EngineLoop
from sojourn.scheduler.request import StopConditions, make_request
from sojourn.sessions.door import checked_token_ids
from sojourn.sessions.expiry import Deadlines
from sojourn.sessions.history import History
from sojourn.sessions.session import RunningTurn, Session
from sojourn.sessions.turns import SessionState, TurnEvent, after
from sojourn.sessions.values import (
    CloseReply,
    HistoryView,
    ServiceConfig,
    SessionClosed,
    SessionSummary,
    SlotKeeper,
    TurnParams,
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
]

IdSource = Callable[[], str]  # a fresh id each time

_SESSIONS_SHOWN = 32  # in a report


class SessionService:
    """Owns the sessions. Lives on the engine's thread, as its crank."""

    def __init__(
        self, engine: EngineLoop, slots: SlotKeeper, config: ServiceConfig, *, clock: Clock, new_id: IdSource
    ) -> None:
        self._engine = engine
        self._slots = slots
        self._config = config
        self._clock = clock
        self._new_id = new_id
        self._sessions: dict[str, Session] = {}
        self._deadlines = Deadlines()  # of idle sessions
        self._turns: dict[RequestId, Session] = {}  # requests that are some session's running turn
        self._outbox: list[Event | Notice] = []  # what happened between two steps

    # -- sessions

    def open(self, session_id: str | None = None, *, namespace: str = "", idle_timeout_s: float | None = None) -> str:
        """A new, empty session. KV is shared with others of its namespace only. `idle_timeout_s` None: the service's."""
        name = self._new_id() if session_id is None else session_id
        self._add(name, namespace, History(), self._config.idle_timeout_s if idle_timeout_s is None else idle_timeout_s)
        return name

    def close(self, session_id: str) -> CloseReply:
        """End the session: now, or when its running turn ends."""
        session = self._get(session_id)
        self._move(session, TurnEvent.CLOSE)
        if session.state is SessionState.CLOSING:
            return CloseReply(deferred=True, freed_pages=None)
        return CloseReply(deferred=False, freed_pages=self._remove(session))

    def rewind(self, session_id: str, *, length: int | None = None, turn: int | None = None) -> int:
        """Go back to `length` tokens, or to the end of a finished `turn`; the rest is forgotten. The new length."""
        session = self._get(session_id)
        following = after(session.state, TurnEvent.BRANCH)
        where = session.branch_length(length, turn)
        session.state = following
        session.history.rewind(where)
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
        name = self._new_id() if new_id is None else new_id
        self._add(name, session.namespace, session.history.fork(where), session.idle_timeout_s)
        self._slots.begin(CacheKey(session.namespace, name), where)
        self._sessions[name].has_begun = True
        return name

    def history(self, session_id: str) -> HistoryView:
        session = self._get(session_id)
        return HistoryView(session.state, session.history.tokens(), session.history.turns)

    def summary(self, session_id: str) -> SessionSummary:
        session = self._get(session_id)
        history = session.history
        return SessionSummary(session.state, history.settled_len, history.num_turns, session.idle_timeout_s)

    def pages_held(self, session_id: str) -> int:
        """Own and leased pages, over all pools."""
        return self._slots.pages_held(self._get(session_id).session_id)

    def pages_by_pool(self, session_id: str) -> dict[Pool, tuple[int, int]]:
        """(own, leased) pages per pool."""
        return self._slots.pages_by_pool(self._get(session_id).session_id)

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
        ids = checked_token_ids("input_ids", new_ids, self._config.vocab_size)
        total = session.history.settled_len + len(ids)
        if total == 0:
            raise ClientError("the session is empty: its first turn needs at least 1 token", param="input_ids")
        max_new_tokens = self._max_new_tokens(total, params)
        self._engine.scheduler.check(total, max_new_tokens)
        namespace = session.namespace if cache_namespace is None else cache_namespace
        if namespace != session.namespace and session.has_begun:
            raise ClientError("the cache of a session is chosen with its first turn, not later", param="cache_salt")
        request_id = RequestId(self._new_id())
        key = CacheKey(namespace, session.session_id)
        before = session.history.settled_len
        self._submit(request_id, session.history.prompt(ids), before, key, max_new_tokens, params)  # last to refuse
        session.namespace, session.has_begun = namespace, True
        session.state = following
        session.turn = RunningTurn(request_id, session.history.begin(ids, note))
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

    def abort_request(self, request_id: RequestId, message: str = "") -> None:
        self._report(self._engine.abort(request_id, message))

    # -- the crank

    @property
    def has_work(self) -> bool:
        return self._engine.has_work or bool(self._outbox)

    def wake_in(self) -> float | None:
        """Seconds until the session that is idle longest expires."""
        first = self._deadlines.first()
        return None if first is None else max(0.0, first - self._clock())

    def shut_down(self) -> None:
        """No step follows: waits for what still runs."""
        self._engine.shut_down()

    def report(self, error: CorruptionError) -> str:
        """What the engine has to say, and which sessions were open."""
        shown = list(self._sessions.values())[:_SESSIONS_SHOWN]
        lines = [f"  {one.session_id}: {one.state.value}, {one.history.settled_len} tokens" for one in shown]
        return "\n".join([self._engine.report(error), f"open sessions: {len(self._sessions)}", *lines])

    def step(self) -> list[Event | Notice]:
        """One step of the engine, the histories settled by what it finished, and what has expired closed."""
        for event in self._engine.step():
            self._report(event)
        self._expire()
        events, self._outbox = self._outbox, []
        return events

    # -- inside

    def _add(self, session_id: str, namespace: str, history: History, idle_timeout_s: float | None) -> None:
        if session_id in self._sessions:
            raise ConflictError(f"session {session_id} is open already", param="session_id")
        session = Session(session_id, namespace, idle_timeout_s, history)
        self._sessions[session_id] = session
        self._rest(session)

    def _rest(self, session: Session) -> None:
        """The session is idle from now on."""
        if session.idle_timeout_s is not None:
            self._deadlines.set(session.session_id, self._clock() + session.idle_timeout_s)

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

    def _settle(self, session: Session, event: FinishedEvent) -> None:
        turn = session.turn
        law(turn is not None and turn.request_id == event.request_id, "%s ends a turn of another", event.request_id)
        if turn is None:
            return
        if event.reason is FinishReason.ABORT:
            session.history.abort(turn.claim)
            self._move(session, TurnEvent.ABORT)
        else:
            session.history.commit(turn.claim, event.output_ids, event.reason.value)
            self._move(session, TurnEvent.FINISH)
        session.turn = None
        if session.state is SessionState.CLOSED:
            self._outbox.append(self._closed(session, is_expired=False))
        else:
            self._rest(session)

    def _expire(self) -> None:
        if self._deadlines.first() is None:
            return
        for session_id in self._deadlines.take_due(self._clock()):
            session = self._sessions[session_id]
            self._move(session, TurnEvent.EXPIRE)
            self._outbox.append(self._closed(session, is_expired=True))

    def _closed(self, session: Session, *, is_expired: bool) -> SessionClosed:
        freed = self._remove(session)
        history = session.history
        return SessionClosed(session.session_id, is_expired, freed, history.settled_len, len(history.turns))

    def _remove(self, session: Session) -> int:
        """A session in state CLOSED leaves; returns the pages its slot owned."""
        law(session.state is SessionState.CLOSED, "session %s leaves while %s", session.session_id, session.state)
        del self._sessions[session.session_id]
        self._deadlines.clear(session.session_id)
        return self._slots.release_session(session.session_id)
