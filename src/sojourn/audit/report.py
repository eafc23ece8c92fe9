"""What the engine says before it stops on a broken law: the law, the past of the page in question, the pools and holdings.

Reads everything, changes nothing, and must not fail on a broken book: it only reads ledgers, lists and lengths.
"""

from collections.abc import Sequence

from sojourn.cache.protocol import PrefixCache
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import PageId, StepId
from sojourn.pages.ledger import Move, PageLedger, PageOwnerError

_MOVES_SHOWN = 12
_HOLDINGS_SHOWN = 32


def report(error: CorruptionError, cache: PrefixCache, step: StepId | None) -> str:
    """A page of text for the log: law, step, page with its last moves, pools with theirs, the cache, open holdings."""
    books = [cache.book] if cache.draft_book is None else [cache.book, cache.draft_book]
    ledgers = [ledger for book in books for ledger in book.ledgers]
    holdings = [holding for book in books for holding in book.holdings.values()]
    lines = [f"broken law: {error}", f"step: {'none' if step is None else step}"]
    if isinstance(error, PageOwnerError):
        lines += [line for ledger in ledgers if ledger.pool is error.pool for line in _past_of(ledger, error.page)]
    for ledger in ledgers:
        now = ledger.statistics()
        lines.append(
            f"pool {ledger.pool.name}: {now.num_pages} pages, {now.num_free} free, {now.num_fenced} fenced, "
            f"{now.steps_in_flight} steps in flight, {now.moves} moves"
        )
        owners = [
            f"  {ledger.accounts.name(account)}: {count}" for account, count in ledger.balances().items() if count
        ]
        lines += owners[:_HOLDINGS_SHOWN]
        lines += ["  last moves:", *_shown(ledger, ledger.moves_since(now.moves - _MOVES_SHOWN))]
    lines.append("cache: " + (", ".join(f"{name} {count}" for name, count in cache.facts()) or "keeps nothing"))
    lines.append(f"open holdings: {len(holdings)}")
    lines += [
        f"  {holding}, window let go below {holding.swa_evicted_seqlen}" for holding in holdings[:_HOLDINGS_SHOWN]
    ]
    return "\n".join(lines)


def _past_of(ledger: PageLedger, page: PageId) -> list[str]:
    first = f"page: {ledger.pool.name} {page}, owned by {ledger.accounts.name(ledger.owner(page))}"
    moves = ledger.moves_of(page)
    return [first, *(_shown(ledger, moves[-_MOVES_SHOWN:]) if moves else ["  no move of it is remembered"])]


def _shown(ledger: PageLedger, moves: Sequence[Move]) -> list[str]:
    name = ledger.accounts.name
    return [
        f"  move {move.serial}, after step {move.step} launched: {name(move.source)} -> {name(move.target)}, "
        f"with {len(move.pages)} pages"
        for move in moves
    ]
