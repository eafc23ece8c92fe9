"""Who writes which page: no page is written by two works, neither of one step nor of steps in flight together.

A work computes KV into its sequence's own pages; what the tree lends is only read. Looks at the holdings as a step is
launched; changes nothing.
"""

from collections import deque
from collections.abc import Iterable

from sojourn.core.errors import law
from sojourn.core.ids import AccountId, PageId, StepId
from sojourn.pages.holding import Holding, HoldingBook
from sojourn.pages.ledger import PageLedger, PageOwnerError
from sojourn.scheduler.scheduler import Launched

_Writers = list[dict[int, AccountId]]  # per pool, page -> the account that writes it


class WriteCheck:
    """Told of every launch and retirement. Raises CorruptionError at the first page with two writers."""

    def __init__(self, book: HoldingBook) -> None:
        self._book = book
        self._flights: deque[tuple[StepId, _Writers]] = deque()

    def launch(self, step: StepId, works: Iterable[Launched]) -> None:
        """The works of `step`, about to run."""
        writers: _Writers = [{} for _ in self._book.ledgers]
        seen: set[AccountId] = set()
        for work in works:
            holding = work.request.cached.holding
            law(holding is not None, "step %d runs %s, which holds nothing", step, work.request.request_id)
            assert holding is not None
            law(holding.account not in seen, "step %d runs %s twice", step, holding)
            seen.add(holding.account)
            for ledger, mine in zip(self._book.ledgers, writers, strict=True):
                for page in self._written(ledger, holding, work.start, work.end):
                    self._check_flights(ledger, page, holding.account)
                    mine[page] = holding.account
        self._flights.append((step, writers))

    def retire(self, step: StepId) -> None:
        """`step` has run, and writes no more."""
        while self._flights and self._flights[0][0] <= step:
            self._flights.popleft()

    def _written(self, ledger: PageLedger, holding: Holding, start: int, end: int) -> list[int]:
        """The pages of `[start, end)`, each the holding's own: an account owns a page alone, so nobody else writes it."""
        layout = self._book.layout
        pages = holding.lists[ledger.pool].pages[start // layout.page_size : layout.pages_for(end)]
        foreign = pages[ledger.owners[pages] != holding.account]
        if len(foreign):
            page = PageId(foreign.item(0))
            owner = self._book.accounts.name(ledger.owner(page))
            message = (
                f"{ledger.pool.name} page {page} is {owner}'s and would be written by {holding} in [{start}, {end})"
            )
            raise PageOwnerError(message, ledger.pool, page)
        written: list[int] = pages.tolist()
        return written

    def _check_flights(self, ledger: PageLedger, page: int, account: AccountId) -> None:
        for step, writers in self._flights:
            other = writers[ledger.pool].get(page, account)
            if other != account:
                name = self._book.accounts.name
                message = f"{ledger.pool.name} page {page} is written by {name(other)} in step {step}, still in flight,"
                raise PageOwnerError(f"{message} and now by {name(account)}", ledger.pool, PageId(page))
