"""One open session: its state, its history, its running turn. Data; the service moves it."""

from dataclasses import dataclass, field

from sojourn.core.errors import ClientError
from sojourn.core.ids import RequestId
from sojourn.sessions.history import Claim, History
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

    def branch_length(self, length: int | None, turn: int | None) -> int:
        """Where to rewind or fork to, named by exactly one of a length and a finished turn."""
        if (length is None) == (turn is None):
            raise ClientError("name exactly one of length and turn", param="length")
        if turn is not None:
            return self.history.length_at(turn)
        where = self.history.settled_len if length is None else length
        self.history.check_length(where)
        return where
