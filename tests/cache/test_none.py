"""The cache that shares nothing: the protocol's promises at their smallest."""

import numpy as np
import pytest

from sojourn.audit.census import census
from sojourn.cache.none import NoneCache
from sojourn.cache.protocol import CacheKey, CacheRequest, Outcome, PrefixMatch, Verdict
from sojourn.cache.release import release_kv_cache
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import RequestId, StepId
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import PoolLayout


def make(pages: int = 9, size: int = 4, window: int = 0) -> NoneCache:
    layout = PoolLayout(size, window)
    return NoneCache(HoldingBook(layout, (pages,) * layout.num_pools))


def request_of(length: int) -> CacheRequest:
    tokens = np.arange(length, dtype=np.int32)
    return CacheRequest(RequestId("r"), CacheKey(), length, tokens, length)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_whatever_the_end_every_page_comes_back(verdict: Verdict) -> None:
    cache = make(window=8)
    request = request_of(20)
    assert cache.match_prefix(request.key, request.known) == PrefixMatch(0)
    assert cache.admit(request, 20)
    assert request.prefix_len == 0
    cache.commit(request, 20)
    cache.cache_unfinished_req(request)
    census(cache)
    release_kv_cache(cache, request, Outcome(verdict))
    census(cache)
    assert all(pool.free + pool.reserved == pool.total for pool in cache.statistics())


def test_shortage_is_weather() -> None:
    cache = make()
    first, second = request_of(20), request_of(16)
    assert cache.admit(first, 20)
    assert not cache.admit(second, 16)
    assert second.holding is None
    assert not cache.grow(first, 33)
    assert cache.grow(first, 32)
    assert cache.capacity(32, 8) is None
    assert "33 tokens need 9 pages" in str(cache.capacity(33, 8))


def test_a_released_page_is_fenced_while_a_step_flies() -> None:
    cache = make()
    first, second = request_of(32), request_of(4)
    assert cache.admit(first, 32)
    cache.launch(StepId(1))
    release_kv_cache(cache, first, Outcome(Verdict.ABORTED))
    assert not cache.admit(second, 4)
    assert cache.could_admit(second, 4, 0, ())
    cache.retire(StepId(1))
    assert cache.admit(second, 4)


def test_finished_len_is_within_the_output() -> None:
    cache = make()
    request = request_of(8)
    assert cache.admit(request, 8)
    for wrong in (-1, 1):
        with pytest.raises(CorruptionError):
            cache.cache_finished_req(request, Outcome(Verdict.FINISHED, wrong))
