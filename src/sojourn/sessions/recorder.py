"""What the service tells its store, and when: group commit, one transaction for all that a step brought.

    between two steps   commit(event)   it stands, or StoreError and nothing has happened
    in a step           note(event) ... flush()   all that ended in it stands, or none of it

Each transaction also tells the store for how long servers have run on it, and where nothing happens one of its own does.
Owns the events that are not kept yet, this clock and the account of bytes. Changes no session.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sojourn.core.clock import Clock
from sojourn.core.step import Sample, TokenArray
from sojourn.engine.meter import Buckets, Histogram
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.session import Session
from sojourn.sessions.shelf import Shelf, bytes_of, bytes_of_turn
from sojourn.sessions.store import (
    Added,
    Aged,
    Begun,
    Ended,
    NoStore,
    Removed,
    Rewound,
    Said,
    SessionStore,
    StoredSession,
    StoreError,
    StoreEvent,
    is_promise,
)

CLOCK_S = 10.0  # of the time that a server ran, a killed one forgets no more than this
PENDING_MAX = 256  # events of turns that were undone, whose ends nobody waits for
COMMIT_SECONDS = tuple(0.0001 * 2**k for k in range(16))  # to 3.3


@dataclass(frozen=True, slots=True)
class KeptStatistics:
    """What a store has now, and its transactions since the start. It is sent to the front as it is."""

    num_sessions: int
    num_bytes: int
    bytes_max: int | None
    failed: int  # transactions, of those that `seconds` has
    seconds: Histogram  # of each transaction


class Recorder:
    """One per service. `logs_tokens`: what running turns say is kept, too, each step."""

    def __init__(
        self, store: SessionStore, clock: Clock, *, logs_tokens: bool = False, bytes_max: int | None = None
    ) -> None:
        self._store = store
        self._keeps = not isinstance(store, NoStore)
        self._clock = clock
        self._logs_tokens = logs_tokens
        self.is_bounded = bytes_max is not None  # there may be a surplus
        self._shelf = Shelf(bytes_max)
        self._pending: list[StoreEvent] = []
        self._failure: StoreError | None = None  # of the last commit
        self._seconds = Buckets(COMMIT_SECONDS)
        self._num_failed = 0
        self._started_at = clock()
        self._used_before = 0.0  # seconds that servers had run on this store
        self._clock_at = self._started_at + CLOCK_S  # when it is told of the time, if it is not told more before
        self._is_open = False  # loaded, and not closed

    # -- the past

    def load(self) -> list[StoredSession]:
        """Every session that is kept, the least recently used first. Once, before anything else."""
        stored = sorted(self._store.load(), key=lambda session: session.used_at)
        self._used_before = self._store.age()
        for session in stored:
            self._shelf.put(session.session_id, bytes_of(session.turns))
        self._is_open = True
        return stored

    def close(self) -> None:
        """The store is left in order. May be called twice.

        A turn that ended in a step which did not is undone: nobody was told.
        """
        if self._is_open:
            self._is_open = False
            self._pending = [_without_record(event) for event in self._pending]
            with suppress(StoreError):  # nobody is promised what is written here
                self._keep(())
        self._store.close()

    def idle_for(self, stored: StoredSession) -> float:
        """Seconds for which the session has been idle, of those that a server ran."""
        return self._now() - stored.used_at

    def wake_in(self) -> float | None:
        """Seconds until `flush` has to tell the store of the time; None: it keeps no session."""
        if len(self._shelf) == 0 or not self._keeps:
            return None
        return max(0.0, self._clock_at - self._clock())

    # -- between two steps

    def added(self, session: Session) -> None:
        self._commit(Added(session.stored(self._now())))
        self._shelf.put(session.session_id, bytes_of(session.history.turns))

    def removed(self, session: Session) -> None:
        """It is closed, or will be when its turn ends: no more is kept of it."""
        self._commit(Removed(session.session_id))
        self._shelf.drop(session.session_id)

    def rewound(self, session: Session, length: int) -> None:
        """It is about to be."""
        self._commit(Rewound(session.session_id, self._now(), length))

    def shortened(self, session: Session) -> None:
        self._shelf.put(session.session_id, bytes_of(session.history.turns))

    def check(self) -> None:
        """Raise StoreError if the store has failed and still does: no turn is worth starting."""
        if self._failure is not None:
            self._keep(())

    # -- in a step

    def begun(self, session: Session, turn: int, new_ids: TokenArray, note: bytes) -> None:
        prompt = new_ids if self._logs_tokens else None
        self._pending.append(
            Begun(session.session_id, session.namespace, turn, prompt, note if self._logs_tokens else b"")
        )

    def said(self, session: Session, samples: Iterable[Sample]) -> None:
        if self._logs_tokens and session.session_id in self._shelf:
            self._pending.append(Said(session.session_id, tuple([sample.token for sample in samples])))

    def undone(self, session: Session) -> None:
        if session.session_id in self._shelf:
            self._pending.append(Ended(session.session_id, self._now(), None))

    def ended(self, session: Session, record: TurnRecord) -> None:
        if session.session_id not in self._shelf:
            return
        tokens = session.history.tokens(record.start)
        self._pending.append(Ended(session.session_id, self._now(), record, tokens))
        self._shelf.add(session.session_id, bytes_of_turn(record))

    def left(self, session: Session) -> None:
        """It closed by itself: told to the store as soon as it listens."""
        if session.session_id not in self._shelf:
            return
        self._pending.append(Removed(session.session_id))
        self._shelf.drop(session.session_id)

    def flush(self) -> None:
        """What was noted stands. StoreError: no turn that ended stands, and their ends are forgotten here."""
        if not self._keeps:
            self._pending.clear()
            return
        if not self._has_to_flush():
            return
        try:
            self._keep(())
        except StoreError:
            self._pending = [_without_record(event) for event in self._pending]
            raise

    def revoked(self, session: Session, record: TurnRecord) -> None:
        self._shelf.add(session.session_id, -bytes_of_turn(record))

    # -- bounds

    def surplus(self, may_go: Callable[[str], bool]) -> list[str]:
        """Sessions that have to be closed for the others to have room."""
        return self._shelf.surplus(may_go)

    @property
    def num_bytes(self) -> int:
        return self._shelf.num_bytes

    def statistics(self) -> KeptStatistics | None:
        """None: nothing is kept."""
        if not self._keeps:
            return None
        shelf, seconds = self._shelf, self._seconds.histogram()
        return KeptStatistics(len(shelf), shelf.num_bytes, shelf.bytes_max, self._num_failed, seconds)

    # -- inside

    def _now(self) -> float:
        return self._used_before + self._clock() - self._started_at

    def _has_to_flush(self) -> bool:
        if self.wake_in() == 0.0:
            return True
        pending = self._pending
        if not pending:
            return False
        return self._logs_tokens or len(pending) >= PENDING_MAX or any(is_promise(event) for event in pending)

    def _commit(self, event: StoreEvent) -> None:
        self._keep((event,))

    def _keep(self, more: Sequence[StoreEvent]) -> None:
        """Never nothing: a store that has failed is asked with something that it has to write."""
        began = self._clock()
        self._clock_at = began + CLOCK_S
        events = [*self._pending, *more, Aged(self._now())]
        try:
            self._store.commit(events)
        except StoreError as error:
            self._failure = error
            self._num_failed += 1
            raise
        finally:
            self._seconds.observe(self._clock() - began)
        self._failure = None
        self._pending.clear()


def _without_record(event: StoreEvent) -> StoreEvent:
    """A turn that ended was undone instead."""
    return Ended(event.session_id, event.used_at, None) if isinstance(event, Ended) else event
