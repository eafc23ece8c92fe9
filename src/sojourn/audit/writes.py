"""Who writes which page: no page is written by two works, neither of one step nor of steps in flight together.

A work computes KV into its sequence's own pages; what the tree lends is only read. Looks at the holdings as a step is
launched; changes nothing.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from sojourn.core.errors import law
from sojourn.core.ids import AccountId, PageId, StepId
from sojourn.core.step import PageArray
from sojourn.pages.holding import Holding, HoldingBook
from sojourn.pages.ledger import PageLedger, PageOwnerError
from sojourn.scheduler.flight import Launched

_Writers = list[dict[int, AccountId]]  # per pool, page -> the account that writes it


class WriteCheck:
    """`check_own` looks at one step. Told of every launch and retirement, it also compares those in flight together.

    Raises CorruptionError at the first page with two writers.
    """

    def __init__(self, book: HoldingBook, drafts: HoldingBook | None = None) -> None:
        """`drafts`: the draft model's; None: there is none."""
        self._book = book
        self._drafts = drafts
        self._flights: deque[tuple[StepId, _Writers]] = deque()

    def check_own(self, step: StepId, works: Iterable[Launched]) -> None:
        """Every work writes pages of its own holding, and no holding runs twice. O(pages written).

        An account owns a page alone, so within a step nobody else writes it.
        """
        seen: set[AccountId] = set()
        seen_drafts: set[AccountId] = set()
        for work in works:
            holding = _holding_of(step, work)
            if holding.account in seen:
                law(False, "step %d runs %s twice", step, holding)
            seen.add(holding.account)
            for ledger in self._book.ledgers:
                pages = _written(ledger, holding, work)
                if not ledger.owns(holding.account, pages):
                    self._refuse(ledger, holding, work, pages)
            draft = work.request.cached.draft
            if draft is not None and self._drafts is not None:
                law(draft.account not in seen_drafts, "step %d runs %s twice", step, draft)
                seen_drafts.add(draft.account)
                self._check_draft(self._drafts, draft)

    def _check_draft(self, drafts: HoldingBook, draft: Holding) -> None:
        """The draft model reads on from what is committed, as far as the places go: any of those may be written."""
        (ledger,) = drafts.ledgers
        pages = draft.lists[0].pages[draft.kv_committed_len // draft.page_size :]
        wrong = pages[ledger.owners[pages] != draft.account]
        if len(wrong):
            page = PageId(wrong.item(0))
            owner = drafts.accounts.name(ledger.owner(page))
            message = f"{ledger.pool.name} page {page} is {owner}'s and would be written by {draft}"
            raise PageOwnerError(message, ledger.pool, page)

    def launch(self, step: StepId, works: Sequence[Launched]) -> None:
        """The works of `step`, about to run."""
        self.check_own(step, works)
        writers: _Writers = [{} for _ in self._book.ledgers]
        for work in works:
            holding = _holding_of(step, work)
            for ledger, mine in zip(self._book.ledgers, writers, strict=True):
                for page in _written(ledger, holding, work).tolist():
                    self._check_flights(ledger, page, holding.account)
                    mine[page] = holding.account
        self._flights.append((step, writers))

    def retire(self, step: StepId) -> None:
        """`step` has run, and writes no more."""
        while self._flights and self._flights[0][0] <= step:
            self._flights.popleft()

    def _refuse(self, ledger: PageLedger, holding: Holding, work: Launched, pages: PageArray) -> None:
        page = PageId(pages[ledger.owners[pages] != holding.account].item(0))
        owner = self._book.accounts.name(ledger.owner(page))
        where = f"[{work.start}, {work.end})"
        message = f"{ledger.pool.name} page {page} is {owner}'s and would be written by {holding} in {where}"
        raise PageOwnerError(message, ledger.pool, page)

    def _check_flights(self, ledger: PageLedger, page: int, account: AccountId) -> None:
        for step, writers in self._flights:
            other = writers[ledger.pool].get(page, account)
            if other != account:
                name = self._book.accounts.name
                message = f"{ledger.pool.name} page {page} is written by {name(other)} in step {step}, still in flight,"
                raise PageOwnerError(f"{message} and now by {name(account)}", ledger.pool, PageId(page))


def _written(ledger: PageLedger, holding: Holding, work: Launched) -> PageArray:
    size = holding.page_size
    return holding.lists[ledger.pool].pages[work.start // size : -(-work.end // size)]


def _holding_of(step: StepId, work: Launched) -> Holding:
    holding = work.request.cached.holding
    if holding is None:
        law(False, "step %d runs %s, which holds nothing", step, work.request.request_id)
    assert holding is not None
    return holding
