"""What was said in one session: an append-only log of tokens, cut into turns. Knows tokens, no pages and no requests.

        0 ............... settled_len | pending .......
        tokens of finished turns      | the running turn's prompt: an overlay, not history

A turn takes the claim; committing it appends its prompt and its output, aborting it drops the overlay. Only the holder
of the claim can do either. Rewinding starts a new branch (the next epoch) at an earlier length; forking copies one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.errors import ClientError, law
from sojourn.core.step import TokenArray

_CAPACITY_MIN = 256  # tokens of the smallest log


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to end one turn of one branch."""

    epoch: int
    turn: int


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A finished turn: prompt `[start, output_start)`, output `[output_start, end)`. A rewind may have cut its end.

    `note` is the caller's own, kept as given; `reason` says why the output ended.
    """

    turn: int
    start: int
    output_start: int
    end: int
    note: bytes = b""
    reason: str = ""


class History:
    """Turn numbers never repeat, also across branches; epochs count branches."""

    def __init__(self) -> None:
        self._tokens: TokenArray = np.empty(_CAPACITY_MIN, dtype=np.int32)
        self._settled_len = 0
        self._turns: list[TurnRecord] = []
        self._epoch = 0
        self._next_turn = 0
        self._claim: Claim | None = None
        self._pending: TokenArray = np.empty(0, dtype=np.int32)
        self._note = b""

    @classmethod
    def restored(cls, tokens: TokenArray, turns: Sequence[TurnRecord], epoch: int, next_turn: int) -> "History":
        """One that was written down. What it is made of has been checked (`store.complaint_of`)."""
        history = cls()
        history._append(tokens)
        history._turns = list(turns)
        history._epoch = epoch
        history._next_turn = next_turn
        return history

    @property
    def settled_len(self) -> int:
        return self._settled_len

    @property
    def turns(self) -> tuple[TurnRecord, ...]:
        return tuple(self._turns)

    @property
    def num_turns(self) -> int:
        return len(self._turns)

    @property
    def claim(self) -> Claim | None:
        return self._claim

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def next_turn(self) -> int:
        return self._next_turn

    def tokens(self, start: int = 0) -> TokenArray:
        """A copy of the settled tokens from `start` on."""
        return self._tokens[start : self._settled_len].copy()

    def begin(self, new_ids: TokenArray, note: bytes = b"") -> Claim:
        """Lay a turn over the history. Nothing is appended until it is committed."""
        law(self._claim is None, "turn %s runs already", self._claim)
        law(self._settled_len + len(new_ids) > 0, "a turn over no tokens at all")
        self._claim = Claim(self._epoch, self._next_turn)
        self._next_turn += 1
        self._pending = np.array(new_ids, dtype=np.int32)
        self._note = note
        return self._claim

    def prompt(self, new_ids: TokenArray) -> TokenArray:
        """Everything a turn with these new tokens is given: the history and they."""
        return np.concatenate((self._tokens[: self._settled_len], np.asarray(new_ids, dtype=np.int32)))

    def commit(self, claim: Claim, output_ids: Sequence[int], reason: str = "") -> TurnRecord:
        """The turn stands: its prompt and its output become history."""
        self._own(claim)
        start = self._settled_len
        self._append(self._pending)
        output_start = self._settled_len
        self._append(np.array(output_ids, dtype=np.int32))
        record = TurnRecord(claim.turn, start, output_start, self._settled_len, self._note, reason)
        self._turns.append(record)
        self._release()
        return record

    def abort(self, claim: Claim) -> None:
        """The turn is undone: the history is as it was before."""
        self._own(claim)
        self._release()

    def revoke(self, record: TurnRecord) -> None:
        """The turn that was committed last does not stand after all; it is as if it had been aborted."""
        law(self._claim is None, "a revocation under turn %s", self._claim)
        law(self._turns[-1:] == [record], "%s was not the last turn", record)
        self._turns.pop()
        self._settled_len = record.start

    def rewind(self, length: int) -> None:
        """Start a new branch that keeps the first `length` tokens. Only between turns."""
        law(self._claim is None, "a rewind under turn %s", self._claim)
        self.check_length(length)
        self._settled_len = length
        self._turns = [_cut(turn, length) for turn in self._turns if turn.start < length]
        self._epoch += 1

    def fork(self, length: int) -> "History":
        """Another history with the same first `length` tokens; a running turn is not part of it."""
        self.check_length(length)
        copy = History()
        copy._append(self._tokens[:length])
        copy._turns = [_cut(turn, length) for turn in self._turns if turn.start < length]
        copy._next_turn = self._next_turn
        return copy

    def length_at(self, turn: int) -> int:
        """The length at the end of a finished turn."""
        for record in reversed(self._turns):
            if record.turn == turn:
                return record.end
        raise ClientError(f"no finished turn {turn}: there are {[record.turn for record in self._turns]}", param="turn")

    def check_length(self, length: int) -> None:
        if not 0 <= length <= self._settled_len:
            raise ClientError(f"length {length} is outside the history, 0 to {self._settled_len}", param="length")

    def _own(self, claim: Claim) -> None:
        law(claim == self._claim, "%s is not the running turn's claim, %s", claim, self._claim)

    def _release(self) -> None:
        self._claim = None
        self._pending = self._pending[:0]
        self._note = b""

    def _append(self, tokens: TokenArray) -> None:
        end = self._settled_len + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens)), dtype=np.int32)
            grown[: self._settled_len] = self._tokens[: self._settled_len]
            self._tokens = grown
        self._tokens[self._settled_len : end] = tokens
        self._settled_len = end


def _cut(record: TurnRecord, length: int) -> TurnRecord:
    if record.end <= length:
        return record
    return replace(record, output_start=min(record.output_start, length), end=length)
