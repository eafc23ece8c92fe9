"""What one session keeps between its turns, and which of those that keep something gives it up first.

    rank    (priority, use before the last, last use)        lowest first; uses are numbered over all sessions; -1: never

The use before the last decides (LRU-2), not the last: a session that comes back now and then is hot, and a burst of sessions
that come back after long, or come once, is demoted among itself. Nothing needs to fade: the number of a use grows old by
itself. Priority is whoever's opened the session, and goes before everything.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sojourn.cache.evict import Rank, VictimQueue
from sojourn.cache.protocol import CacheKey, CacheRequest, Kept
from sojourn.cache.release import holding_of
from sojourn.core.errors import law
from sojourn.core.step import TokenArray
from sojourn.pages.holding import Holding, HoldingState
from sojourn.sessions.misses import Miss

NEVER = -1


@dataclass(slots=True, eq=False)
class SessionSlot:
    """What one session keeps between turns. `settled` counts the tokens of finished turns: where an abort returns to."""

    key: CacheKey
    settled: int = 0
    holding: Holding | None = field(default=None, repr=False)
    tokens: TokenArray | None = field(default=None, repr=False)  # what the holding's KV was computed for
    draft: Holding | None = field(default=None, repr=False)  # the draft model's KV; only `DraftPool` sets it
    turn: CacheRequest | None = field(default=None, repr=False)  # the one that runs, or was retracted and waits
    loss: Miss | None = None  # what became of its KV, while it has less than its history
    used_before: int = NEVER  # number of the use before the last one
    used_last: int = NEVER

    @property
    def is_active(self) -> bool:
        return self.turn is not None

    @property
    def rank(self) -> Rank:
        return self.key.priority, self.used_before, self.used_last

    @property
    def next_rank(self) -> Rank:
        """Where it will stand when a turn that starts now is over, but for the number of that turn."""
        return self.key.priority, self.used_last

    @property
    def num_found(self) -> int:
        """Times that its KV counts as found when the tree gets it."""
        return 1 + (self.used_before != NEVER)

    @property
    def is_attached(self) -> bool:
        """It has something to give up."""
        return self.holding is not None

    def check(self, *, is_queued: bool) -> None:
        """The laws of one slot; `is_queued`: it is one of the idle ones."""
        held = self.holding is not None
        law(held == is_queued, "%s is queued wrongly", self)
        law(not (held and self.is_active), "%s is lent and kept", self)
        law(self.draft is None or not self.is_active, "%s keeps drafts under a turn", self)
        law(self.draft is None or self.draft.kv_committed_len <= self.settled, "%s keeps drafts of no history", self)
        law(self.holding is None or self.holding.state is HoldingState.IDLE, "%s keeps a running holding", self)

    def use(self, number: int) -> None:
        """A turn of it starts."""
        self.used_before, self.used_last = self.used_last, number

    def restore_to_req(self, request: CacheRequest) -> Holding:
        """The holding moves to the request; the slot is active and holds nothing."""
        holding, self.holding, self.tokens = self.holding, None, None
        law(holding is not None, "%s has nothing to restore", self)
        assert holding is not None
        self.turn = request
        request.holding = holding
        return holding

    def check_witness(self, request: CacheRequest, point: int, first: int) -> None:
        """The content law at O(P): the last tokens before the point, from `first` on, are those its KV was computed for."""
        assert self.tokens is not None
        same = np.array_equal(self.tokens[first:point], request.tokens[first:point])
        law(same, "%s resumes at %d on tokens that are not its history", self, point)

    def save_from_req(self, request: CacheRequest) -> Holding:
        """The holding moves from the request to the slot; the turn is over."""
        law(self.turn is request, "%s ends a turn of %s", request.request_id, self)
        law(self.holding is None, "%s is already full", self)
        holding, request.holding = holding_of(request), None
        self.holding, self.tokens, self.turn = holding, request.tokens, None
        if holding.kv_committed_len >= self.settled - 1:
            self.loss = None
        return holding


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """Counts since the start, and of now."""

    num_slots: int
    num_active: int
    num_idle: int  # idle with a holding
    resumes: int
    rematches: int  # admissions of a session with history and no legal point of its own
    demotions: int
    overshoots: int  # finishes that cut committed tokens
    num_to_copy: int = 0  # idle ones that a slower tier has not looked at since


class IdleSlots:
    """The slots with a holding and no turn, and the order among them.

    Copied to a slower tier is first what has been idle longest: it is least likely to change, and be copied in vain.
    """

    def __init__(self) -> None:
        self._slots: dict[Hashable, SessionSlot] = {}
        self._queue = VictimQueue[SessionSlot](lambda slot: True)
        self._to_copy: dict[Hashable, Kept] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[SessionSlot]:
        return iter(self._slots.values())

    def __contains__(self, lineage: Hashable) -> bool:
        return lineage in self._slots

    def get(self, lineage: Hashable) -> SessionSlot | None:
        return self._slots.get(lineage)

    def keep(self, slot: SessionSlot) -> None:
        law(slot.holding is not None and not slot.is_active, "%s is not idle", slot)
        self._slots[slot.key.lineage] = slot
        self._queue.push(slot)
        self.copy_again(slot)

    def remove(self, slot: SessionSlot) -> None:
        del self._slots[slot.key.lineage]
        self._to_copy.pop(slot.key.lineage, None)

    def copy_again(self, slot: SessionSlot) -> None:
        """What it keeps has changed."""
        holding, tokens = slot.holding, slot.tokens
        assert holding is not None
        assert tokens is not None
        self._to_copy.pop(slot.key.lineage, None)
        self._to_copy[slot.key.lineage] = Kept(slot.key, tokens[: holding.kv_committed_len], holding)

    @property
    def num_to_copy(self) -> int:
        return len(self._to_copy)

    def next_to_copy(self) -> Kept | None:
        return next(iter(self._to_copy.values()), None)

    def copied(self, kept: Kept) -> None:
        """As far as it was worth it."""
        del self._to_copy[kept.key.lineage]

    def holdings(self, besides: SessionSlot | None = None, up_to: Rank | None = None) -> list[Holding]:
        """All but that slot's, or of those whose rank, as far as `up_to` names one, is not above it."""
        return [
            slot.holding
            for slot in self._slots.values()
            if slot.holding is not None and slot is not besides and (up_to is None or slot.rank[: len(up_to)] <= up_to)
        ]

    def lowest(self, besides: SessionSlot | None) -> SessionSlot | None:
        """The next to be demoted, other than `besides`; it is no longer queued."""
        slot = self._queue.pop()
        if slot is not besides or slot is None:
            return slot
        following = self._queue.pop()
        self._queue.push(slot)
        return following
