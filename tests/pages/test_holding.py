"""Holdings: what one operation does to the lengths, the lists, the ledgers and the edits."""

import numpy as np
import pytest

from sojourn.core.errors import CapacityError, CorruptionError
from sojourn.core.step import Pool
from sojourn.pages.holding import Holding, HoldingBook, HoldingState
from sojourn.pages.sizing import PoolLayout

SIZES = pytest.mark.parametrize("size", [1, 4, 16, 256])


def book_of(size: int, window: int = 0, pages: int = 600) -> HoldingBook:
    layout = PoolLayout(size, window)
    return HoldingBook(layout, (pages,) * layout.num_pools)


def grown(book: HoldingBook, committed: int, allocated: int | None = None) -> Holding:
    holding = book.open("h", None)
    book.grow(holding, allocated or committed)
    book.commit(holding, committed)
    return holding


@SIZES
def test_grow_allocates_whole_pages_in_every_pool(size: int) -> None:
    book = book_of(size, window=8)
    holding = grown(book, 0, size + 1)
    assert holding.pages_own() == (2, 2)
    assert holding.kv_allocated_len == size + 1
    book.grow(holding, 1)
    assert holding.kv_allocated_len == size + 1, "grow never shrinks"


def test_a_model_without_sliding_layers_has_one_pool() -> None:
    book = book_of(4)
    holding = grown(book, 10)
    assert len(holding.lists) == len(book.ledgers) == 1
    book.slide(holding, 10)
    assert holding.swa_evicted_seqlen == 0
    assert [edit.pool for edit in book.take_edits(holding)] == [Pool.FULL]


def test_grow_short_of_one_pool_changes_neither() -> None:
    book = HoldingBook(PoolLayout(1, 4), (20, 6))
    holding = grown(book, 3)
    with pytest.raises(CapacityError, match="SWA: 4 pages wanted, 2 free"):
        book.grow(holding, 7)
    assert holding.pages_own() == (3, 3)
    assert holding.kv_allocated_len == 3


@SIZES
def test_cut_keeps_the_partial_page(size: int) -> None:
    book = book_of(size, window=512)
    holding = grown(book, 3 * size, 4 * size)
    book.cut(holding, size + 1)
    keep = 2
    assert holding.pages_own() == (keep, keep)
    assert (holding.kv_committed_len, holding.kv_allocated_len) == (size + 1, size + 1)
    assert [ledger.num_free for ledger in book.ledgers] == [599 - keep] * 2


def test_commit_stays_between_what_is_committed_and_allocated() -> None:
    book = book_of(4)
    holding = grown(book, 5, 9)
    for wrong in (4, 10):
        with pytest.raises(CorruptionError):
            book.commit(holding, wrong)


@SIZES
@pytest.mark.parametrize("window", [1, 7, 16, 40])
def test_slide_keeps_both_windows_and_lets_the_hole_go(size: int, window: int) -> None:
    """Against the definition, position by position."""
    book = book_of(size, window, pages=1300)
    settled, end = 300, 1200
    holding = grown(book, settled)
    book.slide(holding, settled)
    for committed in range(settled + 7, end + 1, 53):
        book.grow(holding, committed)
        book.commit(holding, committed)
        book.slide(holding, settled)
        kept = {p // size for p in [*range(max(0, settled - window), settled), *range(committed - window, committed)]}
        live = set(np.flatnonzero(holding.lists[Pool.SWA].pages).tolist())
        assert live == kept
        assert book.ledgers[Pool.SWA].balance(holding.account) == len(kept)
    assert book.is_legal(holding, settled)
    assert book.is_legal(holding, holding.kv_committed_len)
    book.cut(holding, settled)
    book.slide(holding, settled)
    assert book.is_legal(holding, settled)
    assert book.is_legal(holding, settled - 1), "a turn without new tokens computes the last one again"


def test_slide_costs_what_is_let_go() -> None:
    """Nothing below the sweep is looked at again: the marks move with it."""
    book = book_of(1, 4, pages=600)
    holding = grown(book, 500)
    book.slide(holding, 0)
    window = holding.lists[Pool.SWA]
    assert (window.live_from, window.swept) == (496, 496)
    assert holding.swa_evicted_seqlen == 496


def test_edits_tell_what_changed_once() -> None:
    book = book_of(4, 512)
    holding = grown(book, 6)
    first = book.take_edits(holding)
    assert [(edit.pool, edit.first, len(edit.pages)) for edit in first] == [(Pool.FULL, 0, 2), (Pool.SWA, 0, 2)]
    assert book.take_edits(holding) == ()
    book.grow(holding, 8)
    assert book.take_edits(holding) == ()
    book.grow(holding, 9)
    (full, swa) = book.take_edits(holding)
    assert (full.first, swa.first) == (2, 2)
    assert full.pages.tolist() == holding.lists[Pool.FULL].pages[2:].tolist()
    before = full.pages.copy()
    book.cut(holding, 8)
    book.grow(holding, 12)
    assert full.pages.tolist() == before.tolist(), "an edit is its own copy"
    assert [edit.first for edit in book.take_edits(holding)] == [2, 2]


def test_a_woken_holding_tells_its_live_table() -> None:
    book = book_of(4, 8)
    holding = grown(book, 40)
    book.slide(holding, 40)
    book.take_edits(holding)
    book.rest(holding)
    with pytest.raises(CorruptionError):
        book.grow(holding, 50)
    book.wake(holding)
    full, swa = book.take_edits(holding)
    assert (full.first, len(full.pages)) == (0, 10)
    assert (swa.first, len(swa.pages)) == (8, 2)


def test_hand_over_swaps_twins_and_gives_the_rest() -> None:
    book = book_of(4, 512)
    tree = book.accounts.open("tree")
    other = grown(book, 4)
    holding = grown(book, 12)
    book.take_edits(holding)
    for ledger, pages in zip(book.ledgers, other.lists, strict=True):
        ledger.transfer(pages.pages, other.account, tree)
    twins = [np.array([pages.pages[0], 0], dtype=np.int32) for pages in other.lists]
    mine = holding.lists[Pool.FULL].pages.copy()
    for pages in other.lists:  # `other` is only the test's way to a tree with pages
        pages.num_own = 0
    book.hand_over(holding, tree, twins)
    assert holding.cache_protected_len == 8
    assert holding.lists[Pool.FULL].pages.tolist() == [twins[0][0], mine[1], mine[2]]
    assert [ledger.balance(tree) for ledger in book.ledgers] == [2, 2]
    assert holding.pages_own() == (1, 1)
    assert [edit.first for edit in book.take_edits(holding)] == [0, 0]
    with pytest.raises(CorruptionError, match="cut 7 below the lent 8"):
        book.cut(holding, 7)


def test_only_final_pages_are_handed_over() -> None:
    book = book_of(4)
    tree = book.accounts.open("tree")
    holding = grown(book, 7, 12)
    with pytest.raises(CorruptionError, match="hand over 8 of committed 7"):
        book.hand_over(holding, tree, [np.zeros(2, dtype=np.int32)])


def test_close_gives_everything_back_once() -> None:
    book = book_of(4, 8)
    holding = grown(book, 40)
    book.slide(holding, 0)
    book.close(holding)
    assert [ledger.num_free for ledger in book.ledgers] == [599, 599]
    assert holding.state is HoldingState.CLOSED
    assert not book.holdings
    with pytest.raises(CorruptionError):
        book.close(holding)


def test_check_compares_the_lists_with_the_ledger() -> None:
    book = book_of(4, 8)
    holding = grown(book, 10)
    book.ledgers[Pool.SWA].release(holding.lists[Pool.SWA].pages[:1], holding.account)
    with pytest.raises(CorruptionError, match="SWA: 3 own of 3 pages listed, balance 2"):
        book.grow(holding, 11)
