"""The life of a session, as a table. Pure. Events that are not in it raise; nothing else may change the state.

open ──▶ IDLE ◀──────────────▶ RUNNING
          │    start / finish,    │ close
          │    abort              ▼
          │ close, expire      CLOSING ── finish, abort ──▶ CLOSED
          └──────────────────────────────────────────────▶ CLOSED
"""

from enum import Enum

from sojourn.core.errors import ConflictError


class SessionState(Enum):
    IDLE = "idle"
    RUNNING = "running"  # a turn holds the claim
    CLOSING = "closing"  # close was asked for while a turn runs
    CLOSED = "closed"


class TurnEvent(Enum):
    START = "start a turn"
    FINISH = "finish a turn"
    ABORT = "abort a turn"
    BRANCH = "rewind"
    CLOSE = "close"
    EXPIRE = "expire"


class IllegalEventError(ConflictError):
    """The client may not do this to a session in this state."""


TRANSITIONS: dict[SessionState, dict[TurnEvent, SessionState]] = {
    SessionState.IDLE: {
        TurnEvent.START: SessionState.RUNNING,
        TurnEvent.BRANCH: SessionState.IDLE,
        TurnEvent.CLOSE: SessionState.CLOSED,
        TurnEvent.EXPIRE: SessionState.CLOSED,
    },
    SessionState.RUNNING: {
        TurnEvent.FINISH: SessionState.IDLE,
        TurnEvent.ABORT: SessionState.IDLE,
        TurnEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.CLOSING: {
        TurnEvent.FINISH: SessionState.CLOSED,
        TurnEvent.ABORT: SessionState.CLOSED,
        TurnEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.CLOSED: {},
}


def after(state: SessionState, event: TurnEvent) -> SessionState:
    """The state after a legal event; ConflictError for one that is not."""
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise IllegalEventError(f"cannot {event.value}: the session is {state.value}", param="session_id")
    return following
