"""Double-entry bookkeeping for the pages of one pool.

Every page belongs to exactly one account at every moment. The free list, the null page and the fence are accounts too,
so "leaked" and "counted twice" are not states this class can represent: pages move only by `_move(pages, source,
target)`, which names both sides. Knows nothing of tokens, tensors or requests.

    FREE --allocate--> holder --transfer--> tree --transfer--> ...
      ^                   |
      |                release
      |                   v
      +----retire----- FENCED     (a step launched before the release may still touch it)
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from sojourn.core.errors import CapacityError, CorruptionError, law
from sojourn.core.ids import NULL_PAGE, AccountId, PageId, StepId
from sojourn.core.step import PageArray, Pool
from sojourn.pages.accounts import FENCED, FREE, RESERVED, Accounts

_RECORD_PAGES_MAX = 1 << 16  # pages named by the remembered moves of one pool
_RECORD_MOVES_MAX = 1 << 13  # a move of one page takes some 200 bytes: without this the journal grows for hours
_NOWHERE = StepId(-1)


class PageOwnerError(CorruptionError):
    """A move whose source does not own the page. Names the page and the parties; the report adds the page's past."""

    def __init__(self, message: str, pool: Pool, page: PageId) -> None:
        super().__init__(message)
        self.pool = pool
        self.page = page


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One line of the journal: `pages` went from `source` to `target` when `step` was the last one launched."""

    serial: int
    step: StepId
    source: AccountId
    target: AccountId
    pages: PageArray


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    num_pages: int
    num_free: int
    num_fenced: int
    num_reserved: int
    steps_in_flight: int
    moves: int


class PageLedger:
    """Who owns each page of one pool."""

    def __init__(self, pool: Pool, num_pages: int, accounts: Accounts) -> None:
        law(num_pages > 1, "a pool of %d pages has no page beside the null page", num_pages)
        self.pool = pool
        self.num_pages = num_pages
        self.accounts = accounts
        self._owner = np.full(num_pages, FREE, dtype=np.int32)
        self._mark = np.zeros(num_pages, dtype=np.int32)  # scratch of the duplicate check
        self._count = np.arange(num_pages, dtype=np.int32)
        self._stack = np.arange(num_pages - 1, -1, -1, dtype=np.int32)  # free pages, top at the end
        self._num_free = num_pages
        self._fence: deque[tuple[StepId, PageArray]] = deque()
        self._in_flight: deque[StepId] = deque()
        self._last_launched = _NOWHERE
        self._balance: dict[AccountId, int] = {FREE: num_pages, RESERVED: 0, FENCED: 0}
        self._record: deque[tuple[int, StepId, AccountId, AccountId, PageArray]] = deque()  # fields of Move
        self._record_pages = 0
        self._serial = 0
        null = self._pop(1)
        law(null[0] == NULL_PAGE, "page 0 is the null page")
        self._move(null, FREE, RESERVED)

    # -- moves
    def allocate(self, account: AccountId, count: int) -> PageArray:
        """`count` free pages become `account`'s. Raises CapacityError and changes nothing if there are fewer."""
        law(count >= 0, "allocate %d pages", count)
        law(account > FENCED and self.accounts.is_open(account), "account %d cannot own pages", account)
        if count > self._num_free:
            raise CapacityError(f"{self.pool.name}: {count} pages wanted, {self._num_free} free")
        pages = self._pop(count)
        self._move(pages, FREE, account)
        return pages

    def transfer(self, pages: PageArray, source: AccountId, target: AccountId) -> None:
        """Pages change hands between two parties."""
        law(source > FENCED, "account %d gives pages by its own verb", source)
        law(target > FENCED and self.accounts.is_open(target), "account %d cannot be given pages", target)
        self._move(pages.copy(), source, target)

    def release(self, pages: PageArray, source: AccountId) -> None:
        """`source` gives pages up. They are free at once, or when every step now in flight has retired."""
        law(source > FENCED, "account %d gives pages by its own verb", source)
        pages = pages.copy()
        if self._in_flight:
            self._move(pages, source, FENCED)
            if len(pages):
                self._fence.append((self._in_flight[-1], pages))
        else:
            self._move(pages, source, FREE)
            self._push(pages)

    def launch(self, step: StepId) -> None:
        law(step > self._last_launched, "step %d launches after step %d", step, self._last_launched)
        self._in_flight.append(step)
        self._last_launched = step

    def retire(self, step: StepId) -> None:
        """The oldest step in flight is over; what was released during it, or before it, is free."""
        law(bool(self._in_flight) and self._in_flight[0] == step, "step %d retires out of order", step)
        self._in_flight.popleft()
        while self._fence and self._fence[0][0] <= step:
            _, pages = self._fence.popleft()
            self._move(pages, FENCED, FREE)
            self._push(pages)

    def close_account(self, account: AccountId) -> None:
        """An account closes empty. (The chart of accounts is told by whoever opened it.)"""
        balance = self._balance.pop(account, 0)
        if balance:
            raise CorruptionError(f"{self.pool.name}: {self.accounts.name(account)} closes owning {balance} pages")

    # -- questions
    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_fenced(self) -> int:
        return self._balance[FENCED]

    @property
    def oldest_in_flight(self) -> StepId | None:
        """The step whose end the fence waits for next."""
        return self._in_flight[0] if self._in_flight else None

    @property
    def owners(self) -> PageArray:
        """The account of every page; a read-only view, for audits and the page map."""
        view = self._owner.view()
        view.flags.writeable = False
        return view

    def owner(self, page: PageId) -> AccountId:
        return AccountId(self._owner.item(page))

    def owns(self, account: AccountId, pages: PageArray) -> bool:
        """Whether all these pages are the account's."""
        if len(pages) == 1:  # of nearly every decode
            return self._owner.item(pages.item(0)) == account
        return bool((self._owner[pages] == account).all())

    def balance(self, account: AccountId) -> int:
        return self._balance.get(account, 0)

    def balances(self) -> dict[AccountId, int]:
        return dict(self._balance)

    def free_pages(self) -> PageArray:
        """A copy of the free list. For audits."""
        return self._stack[: self._num_free].copy()

    def fenced_pages(self) -> PageArray:
        """Every page behind the fence. For audits."""
        return np.concatenate([pages for _, pages in self._fence] or [self._stack[:0]])

    def moves_of(self, page: PageId) -> list[Move]:
        """The remembered moves of one page, oldest first. For reports."""
        return [Move(*fields) for fields in self._record if (fields[4] == page).any()]

    def moves_since(self, serial: int) -> list[Move]:
        """The remembered moves after that one, oldest first."""
        return [Move(*fields) for fields in self._record if fields[0] > serial]

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            self.num_pages, self._num_free, self.num_fenced, self._balance[RESERVED], len(self._in_flight), self._serial
        )

    # -- the one mutation
    def _move(self, pages: PageArray, source: AccountId, target: AccountId) -> None:
        count = len(pages)
        if count == 0:
            return
        owner = self._owner
        if count == 1:
            page = pages.item(0)
            if not 0 <= page < self.num_pages or owner.item(page) != source:
                self._refuse(pages, source, target)
            owner[page] = target
        else:
            if count > self.num_pages or pages.min() < 0 or pages.max() >= self.num_pages:
                self._refuse(pages, source, target)
            order, mark = self._count[:count], self._mark
            mark[pages] = order
            if not (owner[pages] == source).all() or not (mark[pages] == order).all():
                self._refuse(pages, source, target)
            owner[pages] = target
        self._balance[source] -= count
        self._balance[target] = self._balance.get(target, 0) + count
        self._serial += 1
        self._record.append((self._serial, self._last_launched, source, target, pages))
        self._record_pages += count
        while len(self._record) > _RECORD_MOVES_MAX or (
            self._record_pages > _RECORD_PAGES_MAX and len(self._record) > 1
        ):
            self._record_pages -= len(self._record.popleft()[4])

    def _refuse(self, pages: PageArray, source: AccountId, target: AccountId) -> None:
        """Name the first page that `source` may not give, and who has it."""
        name = self.accounts.name
        outside = pages[(pages < 0) | (pages >= self.num_pages)]
        law(len(outside) == 0, "%s: page %s does not exist", self.pool.name, outside[:1])
        wrong = pages[self._owner[pages] != source]
        if len(wrong):
            page = PageId(wrong.item(0))
            why = f"but {name(self.owner(page))} owns it"
        else:
            seen, counts = np.unique(pages, return_counts=True)
            page = PageId(seen[counts > 1].item(0))
            why = "twice in one move"
        raise PageOwnerError(
            f"{self.pool.name} page {page}: {name(source)} gives it to {name(target)}, {why}", self.pool, page
        )

    def _pop(self, count: int) -> PageArray:
        top = self._num_free
        self._num_free = top - count
        return self._stack[top - count : top][::-1].copy()

    def _push(self, pages: PageArray) -> None:
        count = len(pages)
        self._stack[self._num_free : self._num_free + count] = pages[::-1]
        self._num_free += count
