"""One open session: its state, its history, its running turn. Data; the service moves it."""

from dataclasses import dataclass, field

from sojourn.core.errors import ClientError
from sojourn.core.ids import RequestId
from sojourn.sessions.history import Claim, History
from sojourn.sessions.store import KilledTurn, StoredSession
from sojourn.sessions.turns import SessionState


@dataclass(slots=True, eq=False)
class RunningTurn:
    request_id: RequestId
    claim: Claim


@dataclass(slots=True, eq=False)
class Session:
    session_id: str
    namespace: str
    idle_timeout_s: float | None
    history: History = field(default_factory=History)
    state: SessionState = SessionState.IDLE
    turn: RunningTurn | None = None
    has_begun: bool = False  # the cache knows its namespace
    killed: KilledTurn | None = None  # by the end of an engine; until the next turn
    priority: int = 0  # the higher, the later its KV is given up for others

    @classmethod
    def of(cls, stored: StoredSession) -> "Session":
        """One that was written down. What it is made of has been checked."""
        history = History.restored(stored.tokens, stored.turns, stored.epoch, stored.next_turn)
        return cls(
            stored.session_id,
            stored.namespace,
            stored.idle_timeout_s,
            history,
            has_begun=stored.has_begun,
            killed=stored.killed,
            priority=stored.priority,
        )

    def stored(self, used_at: float) -> StoredSession:
        """To be written down. A running turn is no part of it."""
        history = self.history
        return StoredSession(
            session_id=self.session_id,
            namespace=self.namespace,
            has_begun=self.has_begun,
            idle_timeout_s=self.idle_timeout_s,
            used_at=used_at,
            epoch=history.epoch,
            next_turn=history.next_turn,
            turns=history.turns,
            tokens=history.tokens(),
            priority=self.priority,
        )

    def branch_length(self, length: int | None, turn: int | None) -> int:
        """Where to rewind or fork to, named by exactly one of a length and a finished turn."""
        if (length is None) == (turn is None):
            raise ClientError("name exactly one of length and turn", param="length")
        if turn is not None:
            return self.history.length_at(turn)
        where = self.history.settled_len if length is None else length
        self.history.check_length(where)
        return where
