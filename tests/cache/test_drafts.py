"""Who has the draft model's pages: lent while they last, moved and never copied, and never a reason to wait."""

from dataclasses import dataclass

import numpy as np
import pytest

from sojourn.cache.drafts import DraftPool, draft_book
from sojourn.cache.protocol import CacheKey, CacheRequest
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import RequestId, StepId
from sojourn.core.step import Pool
from sojourn.pages.holding import Holding, HoldingState
from sojourn.pages.sizing import NUM_RESERVED

PAGE_SIZE = 4


@dataclass(eq=False)
class Keeper:
    draft: Holding | None = None


class Shop:
    def __init__(self, pages: int) -> None:
        self.book = draft_book(PAGE_SIZE, pages + NUM_RESERVED)
        self.pool = DraftPool(self.book)
        self._count = 0

    def request(self, length: int, keeper: Keeper | None = None) -> CacheRequest:
        """One that runs, and asked for places up to `length`."""
        self._count += 1
        tokens = np.zeros(400, dtype=np.int32)
        request = CacheRequest(RequestId(f"r{self._count}"), CacheKey(), 1, tokens, 400)
        self.pool.admit(request, keeper, length)
        return request

    def kept(self, length: int) -> Keeper:
        keeper = Keeper()
        request = self.request(length)
        self.pool.commit(request, length)
        self.pool.keep(request, keeper, length)
        return keeper

    @property
    def free(self) -> int:
        return self.book.ledgers[0].num_free

    def check(self) -> None:
        self.pool.audit()
        (counted,) = self.pool.statistics()
        parts = counted.free + counted.fenced + counted.reserved + counted.tree + counted.running + counted.idle
        assert (counted.pool, counted.tree) == (Pool.DRAFT, 0)
        assert parts == counted.total
        assert counted.evictable == counted.idle


def pages_of(holder: Keeper | CacheRequest) -> int:
    return 0 if holder.draft is None else holder.draft.num_pages


def test_a_holding_moves_from_one_to_the_next() -> None:
    shop, keeper = Shop(20), Keeper()
    first = shop.request(30)
    shop.pool.commit(first, 26)
    holding = first.draft
    assert holding is not None
    shop.pool.keep(first, keeper, 21)
    assert (first.draft, keeper.draft, holding.state) == (None, holding, HoldingState.IDLE)
    assert (holding.kv_committed_len, holding.num_pages) == (21, 6), "what lies past the end went back"
    shop.check()
    second = shop.request(33, keeper)
    assert (keeper.draft, second.draft, holding.state) == (None, holding, HoldingState.LIVE)
    assert (second.draft_len, holding.num_pages) == (21, 9)
    (edit,) = shop.pool.take_edits(second)
    assert (edit.pool, edit.first, len(edit.pages)) == (Pool.DRAFT, 0, 9), "a new row is told everything"
    assert shop.pool.drop(second) == 9
    shop.check()
    assert shop.free == 20


def test_what_was_never_computed_is_never_claimed() -> None:
    shop, keeper = Shop(20), Keeper()
    request = shop.request(30)
    shop.pool.commit(request, 9)
    shop.pool.keep(request, keeper, 30)
    assert keeper.draft is not None
    assert keeper.draft.kv_committed_len == 9
    assert pages_of(keeper) == 3
    nothing = shop.request(30)
    shop.pool.keep(nothing, other := Keeper(), 30)
    assert other.draft is None, "nothing was computed, so nothing is kept"
    assert shop.free == 17


def test_places_of_the_last_page_are_used_and_not_counted_on() -> None:
    shop = Shop(20)
    request = shop.request(9)
    shop.pool.commit(request, 12)
    assert request.draft_len == 9
    shop.pool.commit(request, 8)
    assert request.draft_len == 9, "what stands does not fall back"


def test_the_least_recently_used_idle_one_goes_first() -> None:
    shop = Shop(12)
    first, second, third = shop.kept(16), shop.kept(16), shop.kept(12)
    again = shop.request(16, first)  # used again: the second is the oldest now
    shop.pool.keep(again, first, 16)
    running = shop.request(8)
    assert [pages_of(holder) for holder in (first, second, third)] == [4, 0, 3]
    assert pages_of(running) == 2
    shop.check()
    (counted,) = shop.pool.statistics()
    assert counted.evicted == 4


def test_nothing_is_dropped_for_what_would_not_fit_anyway() -> None:
    shop = Shop(12)
    keeper, running = shop.kept(16), shop.request(16)
    late = shop.request(40)
    assert pages_of(late) == 0, "it runs without"
    assert pages_of(keeper) == 4
    shop.pool.grow(running, 32)
    assert pages_of(running) == 8
    shop.pool.grow(running, 40)
    assert (pages_of(running), pages_of(keeper)) == (10, 0), "a running one grows at an idle one's cost"
    shop.pool.grow(running, 60)
    assert pages_of(running) == 10, "and keeps what it has"
    shop.pool.drop(running)
    shop.pool.grow(late, 40)
    assert pages_of(late) == 10, "and may ask again"
    shop.check()


def test_pages_given_up_under_a_step_are_had_when_it_retires() -> None:
    shop = Shop(8)
    keeper = shop.kept(32)
    shop.book.launch(StepId(1))
    request = shop.request(20)
    assert (pages_of(request), pages_of(keeper)) == (0, 0)
    assert shop.book.ledgers[0].num_fenced == 8
    shop.pool.grow(request, 20)
    assert pages_of(request) == 0
    shop.book.retire(StepId(1))
    shop.pool.grow(request, 20)
    assert pages_of(request) == 5
    shop.check()


def test_a_retracted_request_waits_with_what_it_has_and_may_lose_it() -> None:
    shop = Shop(8)
    request = shop.request(20)
    shop.pool.commit(request, 17)
    shop.pool.rest(request)
    shop.check()
    shop.pool.admit(request, Keeper(), 20)
    assert request.draft_len == 17
    shop.pool.rest(request)
    other = shop.request(32)
    assert (pages_of(other), request.draft) == (8, None)
    shop.pool.admit(request, None, 20)
    assert request.draft is not None
    assert (request.draft_len, pages_of(request)) == (0, 0)
    shop.check()


def test_a_retracted_request_may_end() -> None:
    shop, keeper = Shop(8), Keeper()
    request = shop.request(20)
    shop.pool.commit(request, 17)
    shop.pool.rest(request)
    shop.pool.keep(request, keeper, 10)
    assert pages_of(keeper) == 3
    shop.check()
    request = shop.request(20)
    shop.pool.rest(request)
    shop.pool.drop(request)
    shop.check()
    assert shop.free == 5


def test_what_is_kept_is_cut_and_flushed() -> None:
    shop = Shop(20)
    keeper, other = shop.kept(30), shop.kept(8)
    shop.pool.cut(keeper, 40)
    assert pages_of(keeper) == 8
    shop.pool.cut(keeper, 13)
    assert pages_of(keeper) == 4
    shop.check()
    shop.pool.cut(other, 0)
    assert other.draft is None
    shop.pool.flush()
    shop.check()
    assert shop.free == 20
    (counted,) = shop.pool.statistics()
    assert (counted.flushed, counted.evicted) == (4, 0)


def test_without_a_draft_model_nobody_has_any() -> None:
    pool, keeper = DraftPool(), Keeper()
    request = CacheRequest(RequestId("r"), CacheKey(), 1, np.zeros(9, dtype=np.int32), 9)
    pool.admit(request, keeper, 9)
    pool.grow(request, 9)
    pool.commit(request, 9)
    pool.rest(request)
    pool.keep(request, keeper, 9)
    pool.cut(keeper, 3)
    pool.flush()
    pool.audit()
    assert (request.draft, keeper.draft, pool.drop(request)) == (None, None, 0)
    assert (pool.statistics(), pool.take_edits(request), list(pool.idle_holdings())) == ((), (), [])


def test_one_that_keeps_is_not_given_a_second() -> None:
    shop = Shop(20)
    keeper, request = shop.kept(8), shop.request(8)
    with pytest.raises(CorruptionError, match="keeps a draft holding already"):
        shop.pool.keep(request, keeper, 8)


def test_the_audit_finds_a_holder_that_lost_its_own() -> None:
    shop = Shop(20)
    keeper = shop.kept(8)
    keeper.draft = None
    with pytest.raises(CorruptionError, match="queued for drafts it has not"):
        shop.pool.audit()
