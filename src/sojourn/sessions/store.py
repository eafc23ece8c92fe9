"""What is kept of sessions: values, events and the protocol of a store. Knows no file and no database.

A store is told events in the order in which they happened, in groups. When `commit` returns, the whole group is kept; when
it raises, nothing of it is. `load` gives the sessions that all groups so far amount to. One server uses a store at a time;
a database that several replicas share is another class with these methods.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.step import TokenArray
from sojourn.sessions.history import TurnRecord


class Durability(StrEnum):
    """What outlives the engine's process."""

    NONE = "none"  # nothing
    TURN = "turn"  # whatever was acknowledged: finished turns, opened, rewound, forked and closed sessions
    TOKEN = "token"  # and what a turn that was cut off had said


class StoreError(SojournError):
    """The store cannot be used, or has not kept what it was told. The message names the file and says why."""


@dataclass(frozen=True, slots=True, eq=False)
class KilledTurn:
    """A turn that the end of a process cut off: no part of the history; here is what it was asked and had said."""

    turn: int
    prompt_ids: TokenArray  # what was new in it
    output_ids: TokenArray
    note: bytes


@dataclass(frozen=True, slots=True, eq=False)
class StoredSession:
    """A session between two turns. `used_at` is in seconds during which a server ran on this store."""

    session_id: str
    namespace: str
    has_begun: bool
    idle_timeout_s: float | None
    used_at: float
    epoch: int
    next_turn: int
    turns: tuple[TurnRecord, ...]
    tokens: TokenArray
    killed: KilledTurn | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """A session that was not there before: opened, forked or imported."""

    session: StoredSession


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A turn started. `prompt_ids` None: what it says is not logged before it ends."""

    session_id: str
    namespace: str
    turn: int
    prompt_ids: TokenArray | None = None
    note: bytes = b""


@dataclass(frozen=True, slots=True)
class Said:
    """Tokens of the running turn."""

    session_id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """The running turn ended. `record` and its `tokens`, prompt and output, are history now; None: it was undone."""

    session_id: str
    used_at: float
    record: TurnRecord | None
    tokens: TokenArray | None = None


@dataclass(frozen=True, slots=True)
class Rewound:
    session_id: str
    used_at: float
    length: int


@dataclass(frozen=True, slots=True)
class Removed:
    session_id: str


@dataclass(frozen=True, slots=True)
class Aged:
    """Servers have run on this store for so many seconds, all of them together."""

    seconds: float


StoreEvent = Added | Begun | Said | Ended | Rewound | Removed | Aged


def is_promise(event: StoreEvent) -> bool:
    """Whether somebody is told that it stands."""
    if isinstance(event, Ended):
        return event.record is not None
    return not isinstance(event, Begun | Said | Aged)


class SessionStore(Protocol):
    def load(self) -> Iterable[StoredSession]:
        """Every session that is kept. Raises StoreError for one that is damaged."""
        ...

    def age(self) -> float:
        """Seconds that servers have run on it, as it was last told."""
        ...

    def commit(self, events: Sequence[StoreEvent]) -> None:
        """Keep all of them, or raise StoreError and keep none."""
        ...

    def close(self) -> None:
        """It is not used any more. May be called twice."""
        ...


class NoStore:
    """Keeps nothing."""

    def load(self) -> Iterable[StoredSession]:
        return ()

    def age(self) -> float:
        return 0.0

    def commit(self, events: Sequence[StoreEvent]) -> None:
        return

    def close(self) -> None:
        return


def complaint_of(tokens: TokenArray, turns: Sequence[TurnRecord], next_turn: int, vocab_size: int) -> str | None:
    """Why this can be no history: turns lie end to end over the tokens, numbers rise, ids are the vocabulary's."""
    place = 0
    for record in turns:
        if not place == record.start <= record.output_start <= record.end:
            return f"turn {record.turn} does not begin where the one before it ends, or is out of order"
        place = record.end
    if place != len(tokens):
        return f"the turns have {place} tokens, and there are {len(tokens)}"
    numbers = [record.turn for record in turns]
    if not all(before < after for before, after in pairwise([-1, *numbers, next_turn])):
        return f"turn numbers do not rise to {next_turn}"
    wrong = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if len(wrong):
        return f"token {int(wrong[0])} is {int(tokens[wrong[0]])}, outside a vocabulary of {vocab_size}"
    return None
