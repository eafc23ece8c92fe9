"""The life of a session as a table."""

import pytest

from sojourn.core.errors import ConflictError
from sojourn.sessions.turns import TRANSITIONS, SessionState, TurnEvent, after

LEGAL = [(state, event) for state, events in TRANSITIONS.items() for event in events]


def test_every_state_is_in_the_table_and_only_closed_has_no_way_out() -> None:
    assert set(TRANSITIONS) == set(SessionState)
    assert [state for state, events in TRANSITIONS.items() if not events] == [SessionState.CLOSED]


@pytest.mark.parametrize("event", TurnEvent)
@pytest.mark.parametrize("state", SessionState)
def test_what_is_not_in_the_table_is_refused(state: SessionState, event: TurnEvent) -> None:
    if (state, event) in LEGAL:
        assert after(state, event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(ConflictError, match=state.value):
            after(state, event)


def test_one_turn_at_a_time_and_a_close_waits_for_it() -> None:
    running = after(SessionState.IDLE, TurnEvent.START)
    with pytest.raises(ConflictError):
        after(running, TurnEvent.START)
    closing = after(running, TurnEvent.CLOSE)
    assert closing is SessionState.CLOSING
    assert after(closing, TurnEvent.CLOSE) is SessionState.CLOSING
    with pytest.raises(ConflictError):
        after(closing, TurnEvent.START)
    assert after(closing, TurnEvent.ABORT) is after(closing, TurnEvent.FINISH) is SessionState.CLOSED


def test_timers_end_idle_sessions_only() -> None:
    assert after(SessionState.IDLE, TurnEvent.EXPIRE) is SessionState.CLOSED
    for state in (SessionState.RUNNING, SessionState.CLOSING):
        with pytest.raises(ConflictError):
            after(state, TurnEvent.EXPIRE)
