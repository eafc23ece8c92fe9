"""What goes in and out of the session service: its configuration, what a turn asks for, what callers are told. Frozen."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from sojourn.cache.protocol import CacheKey
from sojourn.core.errors import ConflictError
from sojourn.core.step import Pool, SamplingParams, TokenArray
from sojourn.engine.events import FinishedEvent, Notice
from sojourn.scheduler.request import StopMatcher
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.misses import Miss
from sojourn.sessions.store import KilledTurn
from sojourn.sessions.turns import SessionState


class SessionExistsError(ConflictError):
    """A session of that name is open."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} is open already", param="session_id", code="session_exists")


class SlotKeeper(Protocol):
    """What sessions ask of the cache beside requests: `SessionAwareCache`."""

    def begin(self, key: CacheKey, settled: int, origin: Miss) -> None:
        """A session whose first `settled` tokens are history already. It holds nothing yet."""
        ...

    def release_session(self, lineage: Hashable) -> int:
        """Give up the idle slot of a session, if it has one; returns the pages it owned, over all pools."""
        ...

    def rewind_session(self, lineage: Hashable, length: int) -> None:
        """The idle session's settled length is `length` from now on."""
        ...

    def pages_held(self, lineage: Hashable) -> int:
        """Own and leased pages of the session's holding, idle or running, over all pools."""
        ...

    def pages_by_pool(self, lineage: Hashable) -> dict[Pool, tuple[int, int]]:
        """The same as (own, leased) per pool."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    vocab_size: int
    context_length: int
    eos_ids: frozenset[int] = frozenset()
    idle_timeout_s: float | None = None  # from the end of the last turn, unless a session has its own; None: they stay
    idle_max_s: float | None = None  # no session is kept idle for longer, whatever its own timeout
    session_tokens_max: int | None = None  # of one session's history; None: as many as the context has room for


@dataclass(frozen=True, slots=True)
class TurnParams:
    """`max_new_tokens` None: as many as the context has room for.

    `logprobs_from`: log-probabilities of the new tokens from this one on are told too. Of the history none are.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stop_matcher: StopMatcher | None = field(default=None, compare=False)
    logprobs_from: int | None = None


@dataclass(frozen=True, slots=True)
class CloseReply:
    """`deferred`: a turn runs; a `SessionClosed` with the counts follows when it ends. `freed_pages` is known if not."""

    deferred: bool
    freed_pages: int | None


@dataclass(frozen=True, slots=True)
class SessionClosed(Notice):
    """A session ended later than it was asked to, or by itself.

    `why`: "client", it was asked to; "timeout", its own; "age", idle for longer than any is kept; "bytes", others needed its
    place in the store.
    """

    session_id: str
    why: str
    freed_pages: int
    num_tokens: int
    num_turns: int

    @property
    def is_expired(self) -> bool:
        """It ended by itself."""
        return self.why != "client"


@dataclass(frozen=True, slots=True)
class UnstoredEvent(FinishedEvent):
    """A turn that was computed to its end and could not be made durable: it is undone, the session is as before it."""


@dataclass(frozen=True, slots=True, eq=False)
class HistoryView:
    """The settled history: a copy, so a running turn shows in `state` only."""

    state: SessionState
    token_ids: TokenArray
    turns: tuple[TurnRecord, ...]


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session in numbers; of the settled history only."""

    state: SessionState
    num_tokens: int
    num_turns: int
    idle_timeout_s: float | None
    killed: KilledTurn | None = field(default=None, compare=False)
    priority: int = 0
