"""Keeps the KV of a session between its turns. Decorates any prefix cache; the only module that knows KV can outlive a
request.

    SessionSlot   idle, holding  ── restore_to_req ──▶  is_active, empty     the holding is the request's
         ▲                       ◀── save_from_req ──          │
         │                                                     │ retracted: the tree has the KV, the claim stays
         └── idle, empty (demoted, or never run) ◀─────────────┘

A holding is in one place: moved from slot to request and back, never copied, so nothing is counted twice. The draft model's
moves beside it, in a pool and at a length of its own, whatever becomes of the first: `cache/drafts.py` moves it. Knows tokens
only as a resume point's witness; knows no clients and no text.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, replace
from functools import partial
from typing import assert_never

import numpy as np

from sojourn.cache.drafts import DraftPool
from sojourn.cache.evict import USES_MAX, Rank
from sojourn.cache.grow import grow_kv_cache
from sojourn.cache.protocol import (
    ALONE,
    CacheAudit,
    CacheKey,
    CacheRequest,
    CacheStatistics,
    InnerCache,
    Outcome,
    PrefixMatch,
    Room,
    Terms,
    Verdict,
)
from sojourn.cache.release import holding_of, trim_overshoot
from sojourn.cache.statistics import pages_of
from sojourn.core.errors import law
from sojourn.core.ids import StepId
from sojourn.core.step import Pool, TableEdit, TokenArray
from sojourn.core.tier import KvNames, TierStatistics
from sojourn.pages.holding import Holding, HoldingBook
from sojourn.sessions.misses import Miss, miss_of
from sojourn.sessions.slot import IdleSlots, SessionSlot, SlotStatistics


class SessionAwareCache:
    """A PrefixCache whose requests of one lineage (a session id) continue on the KV the last one left."""

    def __init__(self, inner: InnerCache, *, publishes: bool = True, drafts: DraftPool | None = None) -> None:
        self._inner = inner
        self._drafts = drafts or DraftPool()
        self._publishes = publishes
        self._slots: dict[Hashable, SessionSlot] = {}
        self._idle = IdleSlots()
        self._uses = 0  # turns started, of all
        self._resumes = self._rematches = self._demotions = self._overshoots = 0

    @property
    def book(self) -> HoldingBook:
        return self._inner.book

    @property
    def draft_book(self) -> HoldingBook | None:
        return self._drafts.book

    # -- PrefixCache
    def match_prefix(self, key: CacheKey, tokens: TokenArray) -> PrefixMatch:
        slot = self._slots.get(key.lineage)
        point = None if slot is None or slot.holding is None else self._resume_point(slot, len(tokens))
        found = self._inner.match_prefix(key, tokens) if point is None else PrefixMatch(point, "session")
        if slot is None or found.prefix_len >= (needed := min(slot.settled, len(tokens)) - 1):
            return found
        reach = self._inner.reach(key, tokens[:needed])
        return replace(found, miss=miss_of(needed, found.prefix_len, reach, self.book.layout.page_size, slot.loss))

    def is_fetching(self, request: CacheRequest, terms: Terms | None = ALONE) -> bool:
        slot = self._idle.get(request.key.lineage)
        if slot is not None and self._resume_point(slot, len(request.reusable)) is not None:
            return False
        rank = self._rank_of(request)
        room = Room(partial(self._could_make_room, rank=rank), partial(self._make_room, rank=rank))
        return self._inner.fetch(request, terms, room)

    def admit(self, request: CacheRequest, length: int, terms: Terms = ALONE) -> bool:
        if not self._admit(request, length, terms):
            return False
        self._drafts.admit(request, self._slots.get(request.key.lineage), length)
        return True

    def _admit(self, request: CacheRequest, length: int, terms: Terms) -> bool:
        if request.key.lineage is None:
            return self._admit_anew(request, length, terms, self._rank_of(request))
        slot = self._slot_for(request)
        if slot.holding is not None:
            point = self._resume_point(slot, len(request.reusable))
            if point is not None:
                return self._resume(slot, request, point, length, terms)
        if not self._admit_anew(request, length, terms, slot.next_rank):
            return False
        if slot.holding is not None:
            self._demote(slot)  # its KV had no legal point for this turn
        self._take_turn(slot, request)
        slot.turn = request
        self._rematches += slot.settled > 0
        return True

    def covers(self, request: CacheRequest, length: int, terms: Terms = ALONE) -> bool:
        if request.holding is not None:
            wanted = self.book.pages_wanted(request.holding, length)
            return self._inner.could_obtain(wanted, self._idle.holdings())
        slot = None if request.key.lineage is None else self._slots.get(request.key.lineage)
        rank = self._rank_of(request)
        if slot is not None and slot.holding is not None:
            point = self._resume_point(slot, len(request.reusable))
            if point is not None:
                return self._could_make_room(self._wanted(slot.holding, point, length), terms, rank, slot)
        prefix = self._inner.match_prefix(request.key, request.reusable).prefix_len
        return self._inner.could_admit(request, length, prefix, self._demotable(terms, rank, None), terms)

    def grow(self, request: CacheRequest, length: int) -> bool:
        grown = grow_kv_cache(self._inner, holding_of(request), length, self._settled(request), self._make_room)
        if grown and request.draft is not None:
            self._drafts.grow(request, length)
        return grown

    def commit(self, request: CacheRequest, length: int) -> None:
        self._inner.commit(request, length)

    def commit_draft(self, request: CacheRequest, length: int) -> None:
        self._drafts.commit(request, length)

    def take_edits(self, request: CacheRequest) -> tuple[TableEdit, ...]:
        return self._inner.take_edits(request) + (() if request.draft is None else self._drafts.take_edits(request))

    def cache_unfinished_req(self, request: CacheRequest) -> None:
        """Only a first turn publishes before its end: a later one could not be cut back below what it published."""
        if request.key.lineage is None:
            self._inner.cache_unfinished_req(request)
        elif self._publishes and self._settled(request) == 0:
            self._inner.publish(request.key, holding_of(request), request.known, request.num_prompt - 1)

    def cache_finished_req(self, request: CacheRequest, outcome: Outcome) -> None:
        if request.key.lineage is None:
            self._inner.cache_finished_req(request, outcome)
            self._end_drafts(None, request, outcome)
            return
        slot = self._slots.get(request.key.lineage)
        if slot is None or slot.turn is not request:  # it never ran
            law(request.holding is None and outcome.verdict is Verdict.ABORTED, "%s ends unclaimed", request.request_id)
            return
        self._end_turn(slot, request, outcome)
        self._end_drafts(slot, request, outcome)

    def _end_turn(self, slot: SessionSlot, request: CacheRequest, outcome: Outcome) -> None:
        match outcome.verdict:
            case Verdict.FINISHED:
                self._finish(slot, request, outcome.finished_len)
            case Verdict.ABORTED:
                self._abort(slot, request)
            case Verdict.RETRACTED:
                slot.loss = Miss.RETRACTED
                # It is sure to be asked for again.
                self._give_up(slot.key, request.known, holding_of(request), USES_MAX, is_last=False)
                request.holding = None
            case other:
                assert_never(other)

    def capacity(self, length: int, chunk: int) -> str | None:
        return self._inner.capacity(length, chunk)

    def launch(self, step: StepId) -> None:
        self._inner.launch(step)
        if self._drafts.book is not None:
            self._drafts.book.launch(step)

    def retire(self, step: StepId) -> None:
        self._inner.retire(step)
        if self._drafts.book is not None:
            self._drafts.book.retire(step)

    def flush(self) -> None:
        for slot in self._slots.values():
            if slot.holding is not None:
                self._demote(slot)
            if not slot.is_active:
                slot.loss = Miss.FLUSHED
        self._inner.flush()
        self._drafts.flush()

    def save(self, is_late: Callable[[], bool]) -> None:
        """The most recently used first, here as in the tree. Turns that still ran are undone: their sessions' KV stays."""
        for slot in self._slots.values():
            if slot.turn is not None and slot.turn.holding is not None:
                self._abort(slot, slot.turn)
        for slot in sorted(self._idle, key=lambda slot: -slot.used_last):
            if is_late():
                return
            self._demote(slot, is_last=True)
        self._inner.save(is_late)

    def write_ahead(self, *, is_busy: bool) -> float | None:
        while (kept := self._idle.next_to_copy()) is not None:
            if (wait_s := self._inner.copy_ahead(kept, is_busy=is_busy)) is not None:
                return wait_s
            self._idle.copied(kept)
        return None

    def tier_statistics(self) -> TierStatistics | None:
        return self._inner.tier_statistics()

    def statistics(self) -> tuple[CacheStatistics, ...]:
        pages = self._inner.obtainable(self._idle.holdings())
        return (*(replace(s, evictable=pages[s.pool]) for s in self._inner.statistics()), *self._drafts.statistics())

    def facts(self) -> tuple[tuple[str, int], ...]:
        return (
            *self._inner.facts(),
            *asdict(self.slot_statistics()).items(),
            ("session_held_tokens", self.session_held_tokens()),
            ("session_held_swa_tokens", self.session_held_swa_tokens()),
            ("session_held_req_count", self.session_held_req_count()),
        )

    def idle_holdings(self) -> Iterable[Holding]:
        return self._idle.holdings()

    def idle_drafts(self) -> Iterable[Holding]:
        return self._drafts.idle_holdings()

    def audit(self) -> CacheAudit:
        self._drafts.audit()
        for lineage, slot in self._slots.items():
            slot.check(is_queued=lineage in self._idle)
        return self._inner.audit()

    # -- sessions
    def begin(self, key: CacheKey, settled: int, origin: Miss = Miss.RESTORED) -> None:
        """A session whose first `settled` tokens are history already: a fork, or one read back. It holds nothing yet."""
        law(key.lineage is not None and key.lineage not in self._slots, "%s has begun already", key)
        self._slots[key.lineage] = SessionSlot(key, settled, loss=origin)

    def rewind_session(self, lineage: Hashable, length: int) -> None:
        """The history now ends at `length`. KV past it goes to the tree or back; no turn may be running.

        Above what was published it is a cut. Below it the holding goes, and the next turn matches the tree.
        """
        slot = self._slots.get(lineage)
        if slot is None:
            return
        law(not slot.is_active, "%s is rewound during a turn", slot)
        law(length <= slot.settled, "rewind of %s to %d", slot, length)
        slot.settled = length
        self._drafts.cut(slot, length)
        if slot.holding is None:
            return
        target = min(length, slot.holding.kv_committed_len)
        if target > 0 and self.book.is_legal(slot.holding, target):
            self.book.cut(slot.holding, target)
            self._idle.copy_again(slot)
        else:
            self._demote(slot, Miss.REWIND)

    def release_session(self, lineage: Hashable) -> int:
        """The session is closed; no turn may be running. Returns the own pages it gave back, over all pools."""
        slot = self._slots.pop(lineage, None)
        if slot is None:
            return 0
        law(not slot.is_active, "%s is released during a turn", slot)
        drafts = self._drafts.drop(slot)
        holding = slot.holding
        slot.holding = slot.tokens = None  # the queue of idle ones may know the slot for a while
        if holding is None:
            return drafts
        self._idle.remove(slot)
        own = drafts + sum(holding.pages_own())
        self._inner.drop(holding)
        return own

    def demote(self, lineage: Hashable) -> None:
        """An idle session's holding goes to the tree now; the session stays."""
        if (slot := self._idle.get(lineage)) is not None:
            self._demote(slot)

    @property
    def inner(self) -> InnerCache:
        """What it decorates: to ask of a slower tier what no session has to do with."""
        return self._inner

    def copy_out(self, key: CacheKey, tokens: TokenArray) -> KvNames | None:
        """As `InnerCache.copy_out`, with what the session keeps."""
        slot = self._idle.get(key.lineage)
        return self._inner.copy_out(key, tokens, None if slot is None else slot.holding)

    def session_held_tokens(self) -> int:
        """Places of the full pool that idle slots own; what they lend from the tree is the tree's."""
        return self.book.layout.page_size * self.book.pages_own(self._idle.holdings())[Pool.FULL]

    def session_held_swa_tokens(self) -> int:
        return self.book.layout.page_size * sum(self.book.pages_own(self._idle.holdings())[Pool.SWA :])

    def session_held_req_count(self) -> int:
        return len(self._idle)

    def pages_held(self, lineage: Hashable) -> int:
        """Own and leased pages of a session's holding, idle or running, over all pools. O(history)."""
        return sum(own + leased for own, leased in self.pages_by_pool(lineage).values())

    def pages_by_pool(self, lineage: Hashable) -> dict[Pool, tuple[int, int]]:
        """(own, leased) pages per pool of a session's holdings, idle or running. O(history)."""
        slot = self._slots.get(lineage)
        has = None if slot is None else slot.turn or slot
        pages = pages_of(self.book, None if has is None else has.holding)
        return pages | pages_of(self.draft_book, None if has is None else has.draft)

    def slot(self, lineage: Hashable) -> SessionSlot | None:
        """To look at."""
        return self._slots.get(lineage)

    def slot_statistics(self) -> SlotStatistics:
        active = sum(slot.is_active for slot in self._slots.values())
        return SlotStatistics(
            len(self._slots), active, len(self._idle), self._resumes, self._rematches, self._demotions,
            self._overshoots, self._idle.num_to_copy,
        )  # fmt: skip

    # -- admission
    def _slot_for(self, request: CacheRequest) -> SessionSlot:
        key = request.key
        slot = self._slots.get(key.lineage)
        if slot is None:
            slot = self._slots[key.lineage] = SessionSlot(key)
        law(slot.key.namespace == key.namespace, "%s changes its namespace to %s", slot, key.namespace)
        law(slot.turn is None or slot.turn is request, "%s starts during a turn of %s", request.request_id, slot)
        law(request.holding is None, "%s is admitted twice", request.request_id)
        law(slot.settled <= request.num_tokens, "%s: %d tokens forget history", slot, request.num_tokens)
        return slot

    def _resume_point(self, slot: SessionSlot, num_tokens: int) -> int | None:
        """Where a turn of `num_tokens` may resume on the slot's own KV: the last token is computed for its logits."""
        holding = slot.holding
        assert holding is not None
        point = min(holding.kv_committed_len, num_tokens - 1)
        return point if self.book.is_legal(holding, point) else None

    def _resume(self, slot: SessionSlot, request: CacheRequest, point: int, length: int, terms: Terms) -> bool:
        """Make room, then move: cut, the holding to the request, grow."""
        holding = slot.holding
        assert holding is not None
        slot.check_witness(request, point, self.book.layout.floor(max(0, point - 1)))
        if not self._make_room(self._wanted(holding, point, length), terms, slot.next_rank, besides=slot):
            return False
        self._idle.remove(slot)
        self._take_turn(slot, request)
        slot.restore_to_req(request)
        self.book.cut(holding, point)
        self.book.wake(holding)
        self.book.grow(holding, length)
        request.prefix_len = point
        self._resumes += 1
        return True

    def _wanted(self, holding: Holding, point: int, length: int) -> tuple[int, ...]:
        """Pages that a turn up to `length` takes beside those kept up to `point`; its tail gives some, maybe too many."""
        keep, book = self.book.layout.pages_for(point), self.book
        wanted = max(0, book.layout.pages_for(length) - keep)
        if book.oldest_in_flight is not None:  # what the tail gives waits behind the fence
            return (wanted,) * len(book.ledgers)
        return tuple(wanted - int(np.count_nonzero(pages.pages[keep:])) for pages in holding.lists)

    def _take_turn(self, slot: SessionSlot, request: CacheRequest) -> None:
        """A turn begins; one that was retracted has begun already."""
        if slot.turn is not request:
            self._uses += 1
            slot.use(self._uses)

    def _admit_anew(self, request: CacheRequest, length: int, terms: Terms, rank: Rank) -> bool:
        """On the inner cache's match, demoting idle slots if that will cover the need."""
        inner, now = self._inner, replace(terms, spare=0)
        prefix = inner.match_prefix(request.key, request.reusable).prefix_len  # demotion could only lengthen it
        if not inner.could_admit(request, length, prefix, (), terms):
            if not inner.could_admit(request, length, prefix, self._demotable(terms, rank, None), terms):
                return False
            while not inner.could_admit(request, length, prefix, (), now):
                self._demote_lowest(None)
        return inner.admit_within(request, length, prefix, now)

    def _make_room(
        self,
        pages: tuple[int, ...],
        terms: Terms = ALONE,
        rank: Rank | None = None,
        besides: SessionSlot | None = None,
    ) -> bool:
        """Have that many pages free in each pool, evicting first, then demoting any idle slot but `besides`."""
        inner, layout = self._inner, self.book.layout
        wanted, now = terms.added(pages, layout), replace(terms, spare=0).added(pages, layout)
        if not self.book.has_free(wanted) and not inner.could_obtain(wanted, ()):
            if not self._could_make_room(pages, terms, rank, besides):
                return False
            while not inner.could_obtain(now, ()):
                self._demote_lowest(besides)
        return inner.make_room(now) or self.book.has_free(pages)

    def _could_make_room(
        self, pages: tuple[int, ...], terms: Terms, rank: Rank | None, besides: SessionSlot | None = None
    ) -> bool:
        """At once or after the fence."""
        return self._inner.could_obtain(terms.added(pages, self.book.layout), self._demotable(terms, rank, besides))

    def _rank_of(self, request: CacheRequest) -> Rank:
        return self._slots.get(request.key.lineage, SessionSlot(request.key)).next_rank

    def _demotable(self, terms: Terms, rank: Rank | None, besides: SessionSlot | None) -> list[Holding]:
        """What may be given up for somebody of this rank: anything, but he may yield to what will stand above him."""
        return self._idle.holdings(besides, rank if terms.yields else None)

    def _demote_lowest(self, besides: SessionSlot | None) -> None:
        victim = self._idle.lowest(besides)
        law(victim is not None, "demotion was to cover a need and did not")
        assert victim is not None
        self._demote(victim)

    def _demote(self, slot: SessionSlot, why: Miss = Miss.DEMOTED, *, is_last: bool = False) -> None:
        """The holding goes to the tree; session, history and place stay."""
        holding, tokens = slot.holding, slot.tokens
        assert holding is not None
        assert tokens is not None
        slot.holding = slot.tokens = None
        slot.loss = slot.loss or why
        self._idle.remove(slot)
        self._give_up(slot.key, tokens[: holding.kv_committed_len], holding, slot.num_found, is_last=is_last)
        self._demotions += 1

    # -- endings
    def _finish(self, slot: SessionSlot, request: CacheRequest, finished_len: int) -> None:
        holding = request.holding
        if holding is None:  # retracted, and ended by what it had said
            slot.settled, slot.turn = trim_overshoot(request, finished_len), None
            return
        slot.settled = self._trim_overshoot(request, finished_len)
        if slot.settled <= holding.cache_protected_len or holding.kv_committed_len == 0:
            self._discard(slot, request)  # the next turn could not resume above what is lent
            return
        if self._publishes:
            self._inner.publish(request.key, holding, request.known, slot.settled - 1)
        self._inner.slide(holding, slot.settled)
        self._park(slot, request)

    def _abort(self, slot: SessionSlot, request: CacheRequest) -> None:
        """Back to the settled length; nothing is published and, where the KV allows it, nothing is computed again."""
        holding = request.holding
        if holding is None:  # retracted, and never came back
            slot.turn = None
        elif slot.settled == 0 or slot.settled < holding.cache_protected_len:
            self._discard(slot, request)
        else:
            self.book.cut(holding, slot.settled)
            self._inner.slide(holding, slot.settled)
            self._park(slot, request)

    def _trim_overshoot(self, request: CacheRequest, finished_len: int) -> int:
        """A verify round may have committed past the stop: cut tokens and KV to it. Returns the final length."""
        holding = holding_of(request)
        target = trim_overshoot(request, finished_len)
        if holding.kv_committed_len > target:
            self._overshoots += 1
        if target >= holding.cache_protected_len:
            self.book.cut(holding, min(target, holding.kv_committed_len))
        return target

    def _park(self, slot: SessionSlot, request: CacheRequest) -> None:
        holding = slot.save_from_req(request)
        self.book.rest(holding)
        self._idle.keep(slot)

    def _discard(self, slot: SessionSlot, request: CacheRequest) -> None:
        """The turn is over and nothing of its holding may be kept."""
        self._inner.drop(holding_of(request))
        request.holding = slot.turn = None
        slot.loss = slot.loss or Miss.DEMOTED

    def _give_up(self, key: CacheKey, tokens: TokenArray, holding: Holding, uses: int, *, is_last: bool) -> None:
        if self._publishes:
            self._inner.absorb(key, holding, tokens, uses, is_last=is_last)
        else:
            self._inner.drop(holding)

    def _end_drafts(self, slot: SessionSlot | None, request: CacheRequest, outcome: Outcome) -> None:
        """As the history now stands, or as far as it got if it comes back."""
        if outcome.verdict is Verdict.RETRACTED:
            self._drafts.rest(request)
        elif slot is None:
            self._drafts.drop(request)
        else:
            self._drafts.keep(request, slot, slot.settled)

    def _settled(self, request: CacheRequest) -> int:
        return 0 if request.key.lineage is None else self._slots[request.key.lineage].settled
