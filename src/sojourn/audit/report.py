"""What the engine says before it stops on a broken law: the law, the pools' picture, and the past of the page in question.

Reads everything, changes nothing, and must not fail on a broken book: it only reads ledgers and lengths.
"""

from sojourn.core.errors import CorruptionError
from sojourn.core.ids import PageId, StepId
from sojourn.pages.holding import HoldingBook
from sojourn.pages.ledger import PageLedger, PageOwnerError

_MOVES_SHOWN = 12
_HOLDINGS_SHOWN = 32


def report(error: CorruptionError, book: HoldingBook, step: StepId | None) -> str:
    """A page of text for the log: law, step, page with its last moves, pools, open holdings."""
    lines = [f"broken law: {error}", f"step: {'none' if step is None else step}"]
    if isinstance(error, PageOwnerError):
        lines += _past_of(book.ledgers[error.pool], error.page)
    for ledger in book.ledgers:
        now = ledger.statistics()
        lines.append(
            f"pool {ledger.pool.name}: {now.num_pages} pages, {now.num_free} free, {now.num_fenced} fenced, "
            f"{now.steps_in_flight} steps in flight, {now.moves} moves"
        )
        lines += [f"  {book.accounts.name(account)}: {count}" for account, count in ledger.balances().items() if count][
            :_HOLDINGS_SHOWN
        ]
    lines.append(f"open holdings: {len(book.holdings)}")
    lines += [f"  {holding}" for holding in list(book.holdings.values())[:_HOLDINGS_SHOWN]]
    return "\n".join(lines)


def _past_of(ledger: PageLedger, page: PageId) -> list[str]:
    name = ledger.accounts.name
    lines = [f"page: {ledger.pool.name} {page}, owned by {name(ledger.owner(page))}"]
    moves = ledger.moves_of(page)
    lines += [
        f"  move {move.serial}, after step {move.step} launched: {name(move.source)} -> {name(move.target)}, "
        f"with {len(move.pages)} pages"
        for move in moves[-_MOVES_SHOWN:]
    ]
    return lines if moves else [*lines, "  no move of it is remembered"]
