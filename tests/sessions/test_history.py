"""The append-only log: a turn is an overlay, and only its claim ends it."""

import numpy as np
import pytest

from sojourn.core.errors import ClientError, CorruptionError
from sojourn.core.step import TokenArray
from sojourn.sessions.history import Claim, History, TurnRecord


def ids(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def said(history: History) -> list[int]:
    return [int(token) for token in history.tokens()]


def two_turns() -> History:
    history = History()
    history.commit(history.begin(ids(1, 2)), [3])
    history.commit(history.begin(ids(4)), [5, 6])
    return history


def test_a_commit_appends_prompt_and_output() -> None:
    history = two_turns()
    assert said(history) == [1, 2, 3, 4, 5, 6]
    assert history.turns == (TurnRecord(0, 0, 2, 3), TurnRecord(1, 3, 4, 6))
    assert history.settled_len == 6


def test_an_abort_leaves_the_history_as_it_was() -> None:
    history = two_turns()
    claim = history.begin(ids(7, 8))
    assert [int(token) for token in history.prompt(ids(7, 8))] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert said(history) == [1, 2, 3, 4, 5, 6]
    history.abort(claim)
    assert said(history) == [1, 2, 3, 4, 5, 6]
    assert history.claim is None
    assert len(history.turns) == 2


def test_an_interrupted_first_turn_without_output_is_a_turn_like_any_other() -> None:
    history = History()
    history.commit(history.begin(ids(1)), [])
    assert history.turns == (TurnRecord(0, 0, 1, 1),)


def test_only_the_owner_of_the_claim_ends_the_turn() -> None:
    history = two_turns()
    stale = history.begin(ids(7))
    history.abort(stale)
    current = history.begin(ids(8))
    for end in (lambda: history.commit(stale, [1]), lambda: history.abort(stale)):
        with pytest.raises(CorruptionError):
            end()
    with pytest.raises(CorruptionError):
        history.abort(Claim(current.epoch + 1, current.turn))
    with pytest.raises(CorruptionError):
        history.begin(ids(9))
    history.commit(current, [9])
    assert said(history)[-2:] == [8, 9]


def test_a_rewind_starts_a_branch_and_turn_numbers_go_on() -> None:
    history = two_turns()
    history.rewind(5)
    assert said(history) == [1, 2, 3, 4, 5]
    assert list(history.turns) == [TurnRecord(0, 0, 2, 3), TurnRecord(1, 3, 4, 5)]
    claim = history.begin(ids(9))
    assert claim == Claim(epoch=1, turn=2)
    history.commit(claim, [])
    assert said(history) == [1, 2, 3, 4, 5, 9]
    history.rewind(3)
    assert list(history.turns) == [TurnRecord(0, 0, 2, 3)]
    history.rewind(1)
    assert list(history.turns) == [TurnRecord(0, 0, 1, 1)]
    history.rewind(0)
    assert list(history.turns) == []
    assert said(history) == []


def test_a_rewind_under_a_turn_is_a_broken_law() -> None:
    history = two_turns()
    history.begin(ids(7))
    with pytest.raises(CorruptionError):
        history.rewind(3)


def test_a_fork_shares_nothing_but_the_past() -> None:
    history = two_turns()
    history.begin(ids(7))
    fork = history.fork(4)
    assert said(fork) == [1, 2, 3, 4]
    assert fork.claim is None
    fork.commit(fork.begin(ids(50)), [51])
    assert said(fork) == [1, 2, 3, 4, 50, 51]
    assert said(history) == [1, 2, 3, 4, 5, 6]


def test_lengths_and_turns_that_are_not_there_are_refused() -> None:
    history = two_turns()
    assert history.length_at(0) == 3
    assert history.length_at(1) == 6
    for length in (-1, 7):
        with pytest.raises(ClientError, match="0 to 6"):
            history.rewind(length)
        with pytest.raises(ClientError, match="0 to 6"):
            history.fork(length)
    with pytest.raises(ClientError, match="turn 5"):
        history.length_at(5)


def test_the_log_grows_and_copies_are_copies() -> None:
    history = History()
    expected: list[int] = []
    for turn in range(100):
        new = list(range(turn))
        history.commit(history.begin(ids(turn, *new)), new)
        expected += [turn, *new, *new]
    copy = history.tokens()
    assert [int(token) for token in copy] == expected
    copy[:] = -1
    assert said(history) == expected
