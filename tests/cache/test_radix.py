"""The radix cache by example: what is shared, who protects it, who goes first."""

from collections.abc import Sequence

import numpy as np
import pytest

from sojourn.audit.census import census
from sojourn.cache.node import Lease
from sojourn.cache.protocol import CacheKey, CacheRequest, Outcome, Verdict
from sojourn.cache.radix import RadixCache
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import RequestId, StepId
from sojourn.core.step import Pool
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import NUM_RESERVED, PoolLayout

FINISHED = Outcome(Verdict.FINISHED)


class Shop:
    """A radix cache and requests that come and go."""

    def __init__(self, size: int = 4, window: int = 0, pages: Sequence[int] = (64, 64)) -> None:
        layout = PoolLayout(size, window)
        totals = [count + NUM_RESERVED for count in pages]
        self.cache = RadixCache(HoldingBook(layout, totals[: layout.num_pools]))
        self._count = 0

    def request(self, tokens: Sequence[int], namespace: str = "") -> CacheRequest:
        self._count += 1
        array = np.array(tokens, dtype=np.int32)
        return CacheRequest(RequestId(f"r{self._count}"), CacheKey(namespace), len(array), array, len(array))

    def admit(self, tokens: Sequence[int], namespace: str = "") -> CacheRequest:
        request = self.request(tokens, namespace)
        assert self.cache.admit(request, len(tokens))
        self.cache.commit(request, len(tokens))
        return request

    def serve(self, tokens: Sequence[int], namespace: str = "") -> CacheRequest:
        request = self.admit(tokens, namespace)
        self.cache.cache_finished_req(request, FINISHED)
        return request

    def matched(self, tokens: Sequence[int], namespace: str = "") -> int:
        return self.cache.match_prefix(CacheKey(namespace), np.array(tokens, dtype=np.int32)).prefix_len

    def free(self, pool: Pool = Pool.FULL) -> int:
        return self.cache.book.ledgers[pool].num_free


def text(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def test_a_match_leaves_one_token_and_is_whole_pages() -> None:
    shop = Shop()
    shop.serve(text(0, 18))
    assert shop.matched(text(0, 18)) == 16
    assert shop.matched(text(0, 17)) == 16
    assert shop.matched(text(0, 16)) == 12
    assert shop.matched([*text(0, 7), 99, 99]) == 4
    assert shop.matched([99]) == 0
    assert shop.matched([]) == 0


def test_matching_changes_nothing() -> None:
    shop = Shop(pages=(8,))
    shop.serve(text(0, 8))
    shop.serve(text(100, 8))
    before = shop.cache.tree_statistics(), shop.cache.statistics()
    for _ in range(3):
        shop.matched([*text(0, 6), 1, 1, 1])
    assert (shop.cache.tree_statistics(), shop.cache.statistics()) == before
    shop.admit(text(200, 20))  # 5 pages, 4 are free: the oldest goes, looked at or not
    assert (shop.matched(text(0, 9)), shop.matched(text(100, 9))) == (4, 8)


def test_namespaces_share_nothing() -> None:
    shop = Shop()
    shop.serve(text(0, 16), "a")
    assert shop.matched(text(0, 17), "a") == 16
    assert shop.matched(text(0, 17), "b") == 0
    shop.serve(text(0, 16), "b")
    assert shop.cache.statistics()[0].tree == 8


def test_a_branch_splits_and_its_end_merges_again() -> None:
    shop = Shop()
    shop.serve(text(0, 32))
    shop.serve([*text(0, 16), *text(500, 16)])
    assert shop.cache.tree_statistics().num_nodes == 3
    assert shop.cache.statistics()[0].tree == 12
    request = shop.admit([*text(0, 16), *text(500, 17)])  # keeps its branch; the other one goes
    assert shop.cache.make_room((shop.free() + 4,))
    assert shop.matched(text(0, 33)) == 16
    shop.cache.cache_finished_req(request, Outcome(Verdict.ABORTED))
    assert shop.cache.tree_statistics().num_nodes == 1
    census(shop.cache)


def test_leases_survive_splits_and_come_back_without_matching() -> None:
    shop = Shop()
    shop.serve(text(0, 64))
    holders = [shop.admit(text(0, 65)) for _ in range(3)]
    for cut in (8, 24, 40, 56):
        shop.serve([*text(0, cut), *text(1000 + cut, 9)])
        census(shop.cache)
    assert shop.cache.tree_statistics().splits == 4
    for holder in holders:
        assert holder.holding is not None
        assert holder.holding.cache_protected_len == 64
        shop.cache.cache_finished_req(holder, Outcome(Verdict.ABORTED))
        census(shop.cache)
    assert shop.cache.tree_statistics().num_leases == 0


def test_a_lease_is_taken_back_once() -> None:
    shop = Shop()
    request = shop.admit(text(0, 9))
    assert request.holding is not None
    lease = request.holding.lease
    assert isinstance(lease, Lease)
    shop.cache.cache_finished_req(request, FINISHED)
    with pytest.raises(CorruptionError, match="taken back twice"):
        shop.cache.tree.take_back(lease)


def test_eviction_takes_the_oldest_leaf_from_its_tail() -> None:
    shop = Shop(pages=(12,))
    shop.serve(text(0, 16))
    shop.serve(text(100, 16))
    shop.admit(text(200, 20))
    assert shop.matched(text(0, 17)) == 12
    assert shop.matched(text(100, 17)) == 16


def test_use_makes_young() -> None:
    shop = Shop(pages=(12,))
    shop.serve(text(0, 16))
    shop.serve(text(100, 16))
    shop.serve(text(0, 17))
    shop.admit(text(200, 20))
    assert shop.matched(text(0, 17)) == 16
    assert shop.matched(text(100, 17)) == 12


def test_what_is_lent_is_never_evicted_and_the_refusal_changes_nothing() -> None:
    shop = Shop(pages=(8,))
    shop.serve(text(0, 16))
    holder = shop.admit(text(0, 17))
    before = shop.cache.statistics(), shop.cache.tree_statistics()
    wish = shop.request(text(100, 20))
    assert not shop.cache.admit(wish, 20)
    assert wish.holding is None
    assert (shop.cache.statistics(), shop.cache.tree_statistics()) == before
    shop.cache.cache_finished_req(holder, Outcome(Verdict.ABORTED))
    assert shop.cache.admit(wish, 20)
    assert shop.matched(text(0, 17)) == 12


def test_a_request_may_not_evict_what_it_would_borrow() -> None:
    shop = Shop(pages=(8,))
    shop.serve(text(0, 16))  # 4 of 8 pages
    wish = shop.request(text(0, 36))
    assert not shop.cache.admit(wish, 36)  # 4 shared, 5 more: one too many
    assert shop.matched(text(0, 17)) == 16
    assert shop.cache.admit(wish, 32)


def test_with_a_step_in_flight_the_evicted_wait_and_the_retry_finds_them() -> None:
    shop = Shop(pages=(8,))
    shop.serve(text(0, 32))
    shop.cache.launch(StepId(1))
    wish = shop.request(text(100, 8))
    assert not shop.cache.admit(wish, 8)
    assert shop.cache.book.ledgers[0].num_fenced == 2 + 2, "its own, and as many for who asks in the next step"
    shop.cache.retire(StepId(1))
    assert shop.cache.admit(wish, 8)
    assert shop.matched(text(0, 33)) == 16


def test_with_a_step_in_flight_everybody_who_asks_finds_pages_in_the_next_step() -> None:
    shop = Shop(pages=(12,))
    shop.serve(text(0, 48))
    shop.cache.launch(StepId(1))
    wishes = [shop.request(text(100 * number, 4)) for number in range(1, 5)]
    assert not any(shop.cache.admit(wish, 4) for wish in wishes)
    shop.cache.retire(StepId(1))
    shop.cache.launch(StepId(2))
    assert all(shop.cache.admit(wish, 4) for wish in wishes)
    assert shop.cache.book.ledgers[0].num_fenced + shop.cache.book.ledgers[0].num_free >= 4, "and so it goes on"


def test_what_an_older_one_takes_in_every_step_it_does_not_take_from_a_younger_one_for_ever() -> None:
    """Two grow by a page a step out of a full tree, the older first: both have theirs every other step at least."""
    shop = Shop(pages=(40,))
    older, younger = shop.request(text(200, 60)), shop.request(text(300, 60))
    assert shop.cache.admit(older, 4)
    assert shop.cache.admit(younger, 4)
    shop.serve(text(0, 152))
    lengths = [4, 4]
    for step in range(1, 13):
        shop.cache.launch(StepId(step))
        for index, request in enumerate((older, younger)):
            lengths[index] += 4 * shop.cache.grow(request, lengths[index] + 4)
        shop.cache.retire(StepId(step))
    assert min(lengths) >= 4 * 6, lengths


def test_pages_that_went_are_counted_by_why_they_went() -> None:
    shop = Shop(size=4, window=8, pages=(8, 8))

    def gone() -> list[tuple[int, int]]:
        return [(pool.evicted, pool.flushed) for pool in shop.cache.statistics()]

    shop.serve(text(0, 16))  # 4 pages of each pool
    assert gone() == [(0, 0), (0, 0)]
    shop.serve(text(100, 24))  # 6 of each, 4 are free
    assert gone() == [(2, 0), (2, 0)]
    left = [pool.tree for pool in shop.cache.statistics()]
    shop.cache.flush()
    assert gone() == [(2, left[Pool.FULL]), (2, left[Pool.SWA])]
    assert shop.free() == 8


def test_window_pages_go_on_their_own_and_leave_tombstones() -> None:
    shop = Shop(size=4, window=8, pages=(64, 8))
    shop.serve(text(0, 17))
    assert shop.cache.statistics()[Pool.SWA].tree == 4
    shop.admit(text(100, 24))  # 6 window pages, 4 are free: the two oldest become tombstones
    assert shop.cache.tree_statistics().swa_pages_evicted == 2
    assert shop.cache.tree_statistics().full_pages_evicted == 0
    assert shop.matched(text(0, 18)) == 16, "the window before 16 is live"
    assert shop.matched(text(0, 16)) == 0, "the one before 12 is not, nor any before it"
    census(shop.cache)


def test_a_tombstone_is_filled_by_whoever_computes_it_again() -> None:
    shop = Shop(size=4, window=8, pages=(64, 8))
    shop.serve(text(0, 17))
    other = shop.admit(text(100, 24))
    shop.cache.cache_finished_req(other, Outcome(Verdict.ABORTED))
    again = shop.admit(text(0, 16))
    assert again.prefix_len == 0
    shop.cache.cache_finished_req(again, FINISHED)
    assert shop.matched(text(0, 16)) == 12
    census(shop.cache)


def test_a_slid_window_gives_its_lease_of_window_pages_back() -> None:
    shop = Shop(size=4, window=8, pages=(64, 64))
    shop.serve(text(0, 33))
    request = shop.admit(text(0, 60))
    assert request.prefix_len == 32
    evictable = shop.cache.statistics()[Pool.SWA].evictable
    assert shop.cache.grow(request, 61)
    assert shop.cache.statistics()[Pool.SWA].evictable == evictable + 2
    assert shop.cache.statistics()[Pool.FULL].evictable == 0
    census(shop.cache)


def test_an_aborted_request_publishes_nothing_and_a_retracted_one_everything() -> None:
    shop = Shop()
    request = shop.admit(text(0, 16))
    shop.cache.cache_finished_req(request, Outcome(Verdict.ABORTED))
    assert shop.matched(text(0, 17)) == 0
    request = shop.admit(text(0, 16))
    shop.cache.cache_finished_req(request, Outcome(Verdict.RETRACTED))
    assert shop.matched(text(0, 17)) == 16
    assert shop.cache.admit(request, 16)
    assert request.prefix_len == 12


def test_overshoot_is_not_published() -> None:
    shop = Shop()
    request = shop.admit(text(0, 16))
    request.num_prompt = 8
    shop.cache.cache_finished_req(request, Outcome(Verdict.FINISHED, 5))
    assert request.num_tokens == 13
    assert shop.matched(text(0, 17)) == 12


def test_ten_thousand_turns_are_a_chain_of_few_nodes() -> None:
    shop = Shop(size=1, pages=(20_001,))
    request = shop.admit(list(range(20_000)))
    assert request.holding is not None
    for end in range(2, 20_001, 2):
        shop.cache.publish(request.key, request.holding, request.known, end)
    assert shop.cache.tree_statistics().num_nodes <= 16
    assert shop.cache.tree_statistics().num_leases == 1
    census(shop.cache)


def test_a_deep_tree_needs_no_recursion() -> None:
    """A fork at every turn: nodes cannot merge, and the tree is 3,000 deep."""
    shop = Shop(size=1, window=4, pages=(9_000, 9_000))
    request = shop.admit(list(range(6_000)))
    assert request.holding is not None
    for end in range(2, 6_001, 2):
        shop.cache.publish(request.key, request.holding, request.known, end)
        node = request.holding.lease.node  # type: ignore[attr-defined]
        fork = shop.request([-end])
        assert shop.cache.admit(fork, 1)
        assert fork.holding is not None
        shop.cache.commit(fork, 1)
        pages = [lst.pages.copy() for lst in fork.holding.lists]
        shop.cache.tree.add_leaf(node, fork.tokens, *pages)
        for ledger, own, lst in zip(shop.cache.book.ledgers, pages, fork.holding.lists, strict=True):
            ledger.transfer(own, fork.holding.account, shop.cache.account)
            lst.truncate(0)
            lst.num_own = 0
        fork.holding.kv_committed_len = fork.holding.kv_allocated_len = 0
        shop.cache.cache_finished_req(fork, Outcome(Verdict.ABORTED))
    assert shop.cache.tree_statistics().num_nodes == 6_000
    repr(request)
    repr(request.holding)
    census(shop.cache)
    assert shop.matched(list(range(6_001))) == 6_000
    shop.cache.cache_finished_req(request, FINISHED)
    shop.cache.flush()
    assert shop.cache.tree_statistics().num_nodes == 0
    assert shop.free() == 9_000
