"""What one sequence holds in the pools, and the only code that may change it.

    positions   0 ...... cache_protected_len ...... kv_committed_len ...... kv_allocated_len
                the tree's, lent | own, KV is final | own, KV may be drafts

    window pool, pages   0 0 0 0 [settled - W, settled) 0 0 0 0 0 0 0 [committed - W, allocated)
                         null     kept for an abort      the hole, let go

Lengths are in tokens, indices in pages. Knows no tokens' values, no requests and no tree; a lease is an opaque receipt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from sojourn.core.errors import CapacityError, law
from sojourn.core.ids import NULL_PAGE, AccountId, StepId
from sojourn.core.step import MODEL_POOLS, PageArray, Pool, TableEdit
from sojourn.pages.accounts import Accounts
from sojourn.pages.ledger import PageLedger
from sojourn.pages.sizing import PoolLayout, misfit

_FIRST_CAPACITY = 16


class HoldingState(Enum):
    LIVE = "live"  # a request runs on it
    IDLE = "idle"  # kept for a later request
    CLOSED = "closed"


class PageList:
    """The pages of one holding in one pool, by page index; grows at the end and is cut there.

    Everything below `live_from` is null, and so is `[hole_from, swept)`, where the sliding window let go.
    """

    __slots__ = ("_data", "changed_from", "hole_from", "live_from", "num_own", "size", "swept")

    def __init__(self, pages: PageArray, live_from: int) -> None:
        self.size = len(pages)
        self._data = np.zeros(max(_FIRST_CAPACITY, self.size), dtype=np.int32)
        self._data[: self.size] = pages
        self.num_own = 0  # pages of the list that are the holding's: what its account must balance to
        self.live_from = live_from
        self.hole_from = 0
        self.swept = 0
        self.changed_from = live_from  # first index whose page the runner has not been told

    @property
    def pages(self) -> PageArray:
        """A view; valid until the next change."""
        return self._data[: self.size]

    def append(self, pages: PageArray) -> None:
        size = self.size + len(pages)
        if size > len(self._data):
            data = np.zeros(max(size, 2 * len(self._data)), dtype=np.int32)
            data[: self.size] = self._data[: self.size]
            self._data = data
        self._data[self.size : size] = pages
        self.changed_from = min(self.changed_from, self.size)
        self.size = size

    def truncate(self, size: int) -> None:
        self.size = size
        self.live_from = min(self.live_from, size)
        self.swept = min(self.swept, size)
        self.changed_from = min(self.changed_from, size)

    def replace(self, first: int, pages: PageArray) -> None:
        """Pages `[first, first + len(pages))` become `pages`."""
        changed = np.flatnonzero(self._data[first : first + len(pages)] != pages)
        if len(changed):
            self._data[first : first + len(pages)] = pages
            self.changed_from = min(self.changed_from, first + changed.item(0))

    def blank(self, first: int, end: int) -> None:
        """Null pages in `[first, end)`. The runner need not know: what the window left is never read again."""
        self._data[first:end] = NULL_PAGE


@dataclass(slots=True, eq=False)
class Holding:
    """What one sequence holds. Read it anywhere; only `HoldingBook` changes it."""

    account: AccountId
    label: str
    page_size: int
    lists: tuple[PageList, ...] = field(repr=False)  # by Pool; parallel
    lease: object = field(repr=False)  # the cache's receipt for [0, cache_protected_len); the cache takes it back
    cache_protected_len: int = 0
    kv_committed_len: int = 0
    kv_allocated_len: int = 0
    state: HoldingState = HoldingState.LIVE

    @property
    def num_pages(self) -> int:
        """Pages of the full list, lent ones included."""
        return self.lists[Pool.FULL].size

    @property
    def num_places(self) -> int:
        """Tokens that fit its pages."""
        return self.lists[0].size * self.page_size

    @property
    def swa_evicted_seqlen(self) -> int:
        """The window pool let go below it (with holes it says nothing: liveness is asked page by page). O(history)."""
        if len(self.lists) == 1:
            return 0
        nulls = np.flatnonzero(self.lists[Pool.SWA].pages == NULL_PAGE)
        return min(self.kv_allocated_len, self.page_size * (1 + nulls.item(-1))) if len(nulls) else 0

    def pages_held(self) -> tuple[int, ...]:
        """Own and lent pages per pool; null pages do not count. O(history)."""
        return tuple(int(np.count_nonzero(pages.pages)) for pages in self.lists)

    def pages_own(self) -> tuple[int, ...]:
        return tuple(pages.num_own for pages in self.lists)


class HoldingBook:
    """Every change to a Holding goes through here and keeps the ledgers in step."""

    def __init__(self, layout: PoolLayout, totals: Sequence[int], pools: Sequence[Pool] = MODEL_POOLS) -> None:
        """One ledger of `totals[i]` pages (null page included) per pool of the layout; the i-th is called `pools[i]`.

        A book of another pool than the model's keeps it where the full one would be.
        """
        law(len(totals) == layout.num_pools, "%d pool sizes for %d pools", len(totals), layout.num_pools)
        self.layout = layout
        self.accounts = Accounts()
        self.ledgers = tuple(PageLedger(pool, total, self.accounts) for pool, total in zip(pools, totals, strict=False))
        self.holdings: dict[AccountId, Holding] = {}  # every open one

    @property
    def oldest_in_flight(self) -> StepId | None:
        """The step whose end the fence waits for next, of every pool."""
        return self.ledgers[Pool.FULL].oldest_in_flight

    def launch(self, step: StepId) -> None:
        """A step that may read pages is in flight: what is released now is fenced until it retires."""
        for ledger in self.ledgers:
            ledger.launch(step)

    def retire(self, step: StepId) -> None:
        for ledger in self.ledgers:
            ledger.retire(step)

    def capacity(self, length: int, chunk: int) -> str | None:
        """None if a request of `length` tokens fits empty pools; else a sentence with its need and the pool's size."""
        return misfit(self.layout, [ledger.num_pages for ledger in self.ledgers], length, chunk)

    def open(self, label: str, lease: object, prefix: Sequence[PageArray] = ()) -> Holding:
        """Start a holding on borrowed pages, one array per pool, null where the tree's window is gone."""
        size = self.layout.page_size
        arrays = prefix or [np.zeros(0, dtype=np.int32)] * len(self.ledgers)
        law(len(arrays) == len(self.ledgers), "%d page lists for %d pools", len(arrays), len(self.ledgers))
        lists = tuple(PageList(pages, _first_live(pages)) for pages in arrays)
        length = lists[Pool.FULL].size * size
        account = self.accounts.open(label)
        holding = Holding(account, label, size, lists, lease, length, length, length)
        self.holdings[account] = holding
        self.check(holding)
        return holding

    def pages_wanted(self, holding: Holding, length: int) -> tuple[int, ...]:
        """New pages of each pool that `grow` to `length` would allocate."""
        return (self._new_pages(holding, length),) * len(self.ledgers)

    def has_free(self, pages: tuple[int, ...]) -> bool:
        """Whether each pool has that many pages free now."""
        return all(ledger.num_free >= wanted for ledger, wanted in zip(self.ledgers, pages, strict=True))

    def could_have(self, pages: tuple[int, ...], more: tuple[int, ...]) -> bool:
        """Whether each pool would have that many free once the fence is down and `more` pages are given back."""
        return all(
            ledger.num_free + ledger.num_fenced + given >= wanted
            for ledger, wanted, given in zip(self.ledgers, pages, more, strict=True)
        )

    def pages_own(self, holdings: Iterable[Holding]) -> tuple[int, ...]:
        """Own pages of these holdings together, per pool."""
        counts = [holding.pages_own() for holding in holdings]
        return tuple(sum(column) for column in zip(*counts, strict=True)) if counts else (0,) * len(self.ledgers)

    def grow(self, holding: Holding, length: int) -> None:
        """Own places up to `length`. Raises CapacityError and changes nothing if it cannot."""
        if holding.state is not HoldingState.LIVE:
            law(False, "%s grows while %s", holding, holding.state)
        if length > holding.num_places:
            wanted = self._new_pages(holding, length)
            for ledger in self.ledgers:
                if ledger.num_free < wanted:
                    raise CapacityError(f"{ledger.pool.name}: {wanted} pages wanted, {ledger.num_free} free")
            for ledger, pages in zip(self.ledgers, holding.lists, strict=True):
                pages.append(ledger.allocate(holding.account, wanted))
                pages.num_own += wanted
        holding.kv_allocated_len = max(holding.kv_allocated_len, length)
        self.check(holding)

    def commit(self, holding: Holding, length: int) -> None:
        """The KV of `[kv_committed_len, length)` is final."""
        committed, allocated = holding.kv_committed_len, holding.kv_allocated_len
        if not committed <= length <= allocated:
            law(False, "commit %d outside %d..%d", length, committed, allocated)
        holding.kv_committed_len = length
        self.check(holding)

    def slide(self, holding: Holding, settled: int) -> None:
        """Let the window pool go behind `settled` and, in a running turn, between it and the committed window."""
        if len(self.ledgers) == 1:
            return
        window = holding.lists[Pool.SWA]
        behind = self.layout.window_first_page(min(settled, holding.kv_committed_len))
        hole = min(window.size, -(-settled // holding.page_size))
        end = self.layout.window_first_page(holding.kv_committed_len)
        if behind <= window.live_from and end <= max(hole, window.swept):
            return
        if behind > window.live_from:
            self._let_go(holding, window.live_from, behind)
            window.live_from = behind
        if end > hole:
            first = window.swept if window.hole_from == hole and window.swept >= hole else hole
            if end > first:
                self._let_go(holding, max(first, window.live_from), end)
                window.hole_from, window.swept = hole, end
            if hole <= window.live_from:  # nothing is kept behind the hole
                window.live_from = max(window.live_from, window.swept)
        self.check(holding)

    def cut(self, holding: Holding, length: int) -> None:
        """Drop what lies past `length`: drafts, overshoot, a stale tail, an aborted turn. A partial page stays."""
        law(holding.cache_protected_len <= length, "cut %d below the lent %d", length, holding.cache_protected_len)
        keep = self.layout.pages_for(length)
        for ledger, pages in zip(self.ledgers, holding.lists, strict=True):
            if keep < pages.size:
                tail = pages.pages[keep:]
                own = tail[tail != NULL_PAGE]
                ledger.release(own, holding.account)
                pages.num_own -= len(own)
                pages.truncate(keep)
        holding.kv_committed_len = min(holding.kv_committed_len, length)
        holding.kv_allocated_len = min(holding.kv_allocated_len, length)
        self.check(holding)

    def hand_over(self, holding: Holding, target: AccountId, lent: Sequence[PageArray]) -> None:
        """The next `len(lent[0])` own pages become `target`'s, or are given up for their twins in `lent`.

        `lent[pool][i]` is the twin that `target` has already, null where it takes the holding's own page (or, in the
        window pool, where neither has one). The holding goes on with the same content, as a borrower.
        """
        first, count = holding.cache_protected_len // holding.page_size, len(lent[0])
        length = (first + count) * holding.page_size
        law(length <= holding.kv_committed_len, "hand over %d of committed %d", length, holding.kv_committed_len)
        for ledger, pages, twins in zip(self.ledgers, holding.lists, lent, strict=True):
            mine = pages.pages[first : first + count]
            live = mine != NULL_PAGE
            swapped = live & (twins != NULL_PAGE)
            given = mine[live & ~swapped]
            ledger.transfer(given, holding.account, target)
            if swapped.any():
                ledger.release(mine[swapped], holding.account)
                pages.replace(first, np.where(swapped, twins, mine))
            pages.num_own -= int(np.count_nonzero(live))
        holding.cache_protected_len = length
        self.check(holding)

    def forget_window(self, holding: Holding, before: int) -> None:
        """Window pages below index `before` are lent no longer: the holding lists null there. All were the tree's."""
        if len(holding.lists) == 1:
            return
        window = holding.lists[Pool.SWA]
        law(
            before * holding.page_size <= holding.cache_protected_len,
            "forget own pages below %d of %s",
            before,
            holding,
        )
        if before > window.live_from:
            self._let_go(holding, window.live_from, before)
            window.live_from = before

    def rest(self, holding: Holding) -> None:
        """No request runs on it any more; it is kept."""
        law(holding.state is HoldingState.LIVE, "%s rests while %s", holding, holding.state)
        holding.state = HoldingState.IDLE

    def wake(self, holding: Holding) -> None:
        """A request runs on it again, in a new row of the runner: its live pages are told anew."""
        law(holding.state is HoldingState.IDLE, "%s wakes while %s", holding, holding.state)
        holding.state = HoldingState.LIVE
        for pages in holding.lists:
            pages.changed_from = pages.live_from

    def close(self, holding: Holding) -> object:
        """Give everything back and return the lease for the cache to take. The holding is dead."""
        law(holding.state is not HoldingState.CLOSED, "%s closes twice", holding)
        first = holding.cache_protected_len // holding.page_size
        for ledger, pages in zip(self.ledgers, holding.lists, strict=True):
            tail = pages.pages[first:]
            ledger.release(tail[tail != NULL_PAGE], holding.account)
            ledger.close_account(holding.account)
            pages.truncate(0)
            pages.num_own = 0
        self.accounts.close(holding.account)
        del self.holdings[holding.account]
        holding.state = HoldingState.CLOSED
        holding.cache_protected_len = holding.kv_committed_len = holding.kv_allocated_len = 0
        lease, holding.lease = holding.lease, None
        return lease

    def take_edits(self, holding: Holding) -> tuple[TableEdit, ...]:
        """What the runner's page table of this sequence does not know yet. Costs what changed."""
        edits = []
        for ledger, pages in zip(self.ledgers, holding.lists, strict=True):
            if pages.changed_from < pages.size:
                edits.append(TableEdit(ledger.pool, pages.changed_from, pages.pages[pages.changed_from :].copy()))
                pages.changed_from = pages.size
        return tuple(edits)

    def is_legal(self, holding: Holding, length: int) -> bool:
        """Whether a turn may resume at `length`: the window before it is live, page by page, and it is above the lent."""
        if not holding.cache_protected_len <= length <= holding.kv_committed_len:
            return False
        if len(self.ledgers) == 1:
            return True
        needed = slice(self.layout.window_needed_page(length), self.layout.pages_for(length))
        return bool(holding.lists[Pool.SWA].pages[needed].all())

    def check(self, holding: Holding) -> None:
        """The laws of one holding that cost O(1); called after every change. The census recounts the lists."""
        size, protected, full = holding.page_size, holding.cache_protected_len, holding.lists[0]
        if (
            not protected <= holding.kv_committed_len <= holding.kv_allocated_len <= full.size * size
            or protected % size
        ):
            law(False, "lengths out of order: %s, %d pages", holding, full.size)
        for ledger, pages in zip(self.ledgers, holding.lists, strict=True):
            if pages.size != full.size or pages.num_own != ledger.balance(holding.account):
                law(False, "%s: %d own of %d pages listed, balance %d; %s", ledger.pool.name, pages.num_own,
                    pages.size, ledger.balance(holding.account), holding)  # fmt: skip
        if full.num_own != full.size - protected // size:
            law(False, "%d own pages above the lent %d: %s", full.num_own, protected, holding)

    def _new_pages(self, holding: Holding, length: int) -> int:
        return max(0, -(-length // holding.page_size) - holding.lists[0].size)

    def _let_go(self, holding: Holding, first: int, end: int) -> None:
        """Null the window pages `[first, end)`; own ones go back, lent ones are only no longer used."""
        window = holding.lists[Pool.SWA]
        end = min(end, window.size)
        if first >= end:
            return
        own = window.pages[max(first, holding.cache_protected_len // holding.page_size) : end]
        own = own[own != NULL_PAGE]
        self.ledgers[Pool.SWA].release(own, holding.account)
        window.num_own -= len(own)
        window.blank(first, end)


def _first_live(pages: PageArray) -> int:
    live = np.flatnonzero(pages)
    return live.item(0) if len(live) else len(pages)
