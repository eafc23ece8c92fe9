"""Who has the pages of the draft model's KV. Best effort: it makes nothing wait, and it refuses nobody.

    CacheRequest.draft   ── keep ──▶  keeper.draft             moved, never copied: one holder has it
           ▲ │           ◀─ admit ──        │
     admit │ ▼ rest                         │ pages are short: the least recently used idle one is dropped,
    retracted, waits ───────────────────────┴─▶ then whoever asks goes on without

A book of its own: one pool, its accounts, its identity. Nothing is lent and nothing is published, so every page is one
sequence's, and a holding's lengths are the draft model's own: `kv_committed_len` is what it has computed, which lags the
target where that found a prefix, and `kv_allocated_len` is what it may compute. A draft model with sliding layers has
full-length pages all the same: a page is one of both its pools, so no window has to be live for a resume to be legal.
Knows no tokens.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from sojourn.cache.protocol import CacheRequest, CacheStatistics
from sojourn.cache.statistics import count_pages
from sojourn.core.errors import law
from sojourn.core.ids import AccountId
from sojourn.core.step import Pool, TableEdit
from sojourn.pages.holding import Holding, HoldingBook, HoldingState
from sojourn.pages.sizing import PoolLayout


class DraftHolder(Protocol):
    """A request, or what keeps a holding between requests."""

    draft: Holding | None


def draft_book(page_size: int, total: int) -> HoldingBook:
    """The book of a draft pool of `total` pages, null page included."""
    return HoldingBook(PoolLayout(page_size), (total,), (Pool.DRAFT,))


class DraftPool:
    """Lends places for the draft model's KV. Without a book there is no draft model, and nobody ever has any."""

    def __init__(self, book: HoldingBook | None = None) -> None:
        self.book = book
        self._idle: OrderedDict[AccountId, DraftHolder] = OrderedDict()  # least recently used first
        self._idle_pages = 0  # of those
        self._dropped = 0  # pages, for somebody who needed them
        self._flushed = 0

    # -- a running request's
    def admit(self, request: CacheRequest, keeper: DraftHolder | None, length: int) -> None:
        """The request runs: what it kept while it waited, or what `keeper` kept, else a new holding; then as `grow`."""
        if self.book is None:
            return
        if request.draft is None and keeper is not None:
            request.draft, keeper.draft = keeper.draft, None
        if request.draft is None:
            request.draft = self.book.open(request.label, None)
        else:
            self._leave_idle(request.draft)
            self.book.wake(request.draft)
        self.grow(request, length)

    def grow(self, request: CacheRequest, length: int) -> None:
        """Places up to `length`, if they can be had now; else it keeps those it has, and may ask again."""
        holding = request.draft
        if holding is None or self.book is None:
            return
        if self._make_room(self.book.pages_wanted(holding, length)[0]):
            self.book.grow(holding, length)

    def commit(self, request: CacheRequest, length: int) -> None:
        """The draft model has computed the KV of `[0, length)` for tokens that stand."""
        holding = request.draft
        if holding is None or self.book is None:
            return
        # Its last page may have places past the length that was asked for: they are used, and not counted on.
        self.book.commit(holding, max(holding.kv_committed_len, min(length, holding.kv_allocated_len)))

    def take_edits(self, request: CacheRequest) -> tuple[TableEdit, ...]:
        holding = request.draft
        return () if holding is None or self.book is None else self.book.take_edits(holding)

    def rest(self, request: CacheRequest) -> None:
        """Retracted: it waits with what it has, as an idle one, and may lose it."""
        if request.draft is not None and self.book is not None:
            self.book.rest(request.draft)
            self._enter_idle(request.draft, request)

    def keep(self, request: CacheRequest, keeper: DraftHolder, length: int) -> None:
        """The request is over: what lies past `length` goes back, the rest is `keeper`'s now, most recently used."""
        law(keeper.draft is None, "%s keeps a draft holding already", keeper)
        holding, request.draft = request.draft, None
        if holding is None or self.book is None:
            return
        if holding.state is HoldingState.IDLE:  # it was waiting
            self._leave_idle(holding)
        else:
            self.book.rest(holding)
        self.book.cut(holding, min(length, holding.kv_committed_len))
        if holding.kv_committed_len == 0:
            self._close(holding)
            return
        keeper.draft = holding
        self._enter_idle(holding, keeper)

    # -- anybody's
    def drop(self, holder: DraftHolder) -> int:
        """Give it all back. Returns the pages."""
        holding, holder.draft = holder.draft, None
        if holding is None:
            return 0
        if holding.state is HoldingState.IDLE:
            self._leave_idle(holding)
        return self._close(holding)

    def cut(self, keeper: DraftHolder, length: int) -> None:
        """What `keeper` keeps ends at `length` now."""
        holding = keeper.draft
        if holding is None or self.book is None or holding.kv_committed_len <= length:
            return
        if length == 0:
            self.drop(keeper)
            return
        before = holding.num_pages
        self.book.cut(holding, length)
        self._idle_pages -= before - holding.num_pages

    def flush(self) -> None:
        for holder in list(self._idle.values()):
            self._flushed += self.drop(holder)

    # -- the world
    def statistics(self) -> tuple[CacheStatistics, ...]:
        """Of the one pool; nothing without a draft model."""
        if self.book is None:
            return ()
        (counted,) = count_pages(self.book, None, (self._idle_pages,))
        return (replace(counted, evicted=self._dropped, flushed=self._flushed),)

    def idle_holdings(self) -> Collection[Holding]:
        """What is kept and no request runs on, least recently used first."""
        return [holder.draft for holder in self._idle.values() if holder.draft is not None]

    def audit(self) -> None:
        """The queue, the holders and the running count agree. Changes nothing."""
        pages = 0
        for account, holder in self._idle.items():
            holding = holder.draft
            law(holding is not None and holding.account == account, "%s is queued for drafts it has not", holder)
            assert holding is not None
            law(holding.state is HoldingState.IDLE, "%s keeps running drafts", holder)
            pages += holding.num_pages
        law(pages == self._idle_pages, "%d idle draft pages, %d counted", pages, self._idle_pages)

    # -- inside
    def _make_room(self, wanted: int) -> bool:
        """Have `wanted` pages free, dropping idle holdings if that covers it. False: not now."""
        assert self.book is not None
        (ledger,) = self.book.ledgers
        if ledger.num_free >= wanted:
            return True
        if ledger.num_free + ledger.num_fenced + self._idle_pages < wanted:
            return False
        while ledger.num_free + ledger.num_fenced < wanted:
            self._dropped += self.drop(next(iter(self._idle.values())))
        return ledger.num_free >= wanted  # with a step in flight they wait behind the fence, and the next try has them

    def _enter_idle(self, holding: Holding, holder: DraftHolder) -> None:
        self._idle[holding.account] = holder
        self._idle_pages += holding.num_pages

    def _leave_idle(self, holding: Holding) -> None:
        law(holding.account in self._idle, "%s is not idle", holding)
        del self._idle[holding.account]
        self._idle_pages -= holding.num_pages

    def _close(self, holding: Holding) -> int:
        assert self.book is not None
        pages = holding.num_pages
        lease = self.book.close(holding)
        law(lease is None, "a lease nobody lent: %s", lease)
        return pages
