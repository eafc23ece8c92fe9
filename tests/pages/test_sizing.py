"""Arithmetic of pages, by hand."""

import pytest

from sojourn.core.errors import CorruptionError
from sojourn.core.step import Pool
from sojourn.pages.sizing import (
    NUM_RESERVED,
    KvShape,
    PoolLayout,
    misfit,
    page_bytes,
    pool_totals,
    request_need,
)

GEMMA = KvShape(num_full_layers=3, num_sliding_layers=15, num_kv_heads=1, head_dim=256, value_bytes=2)
SMOL = KvShape(num_full_layers=30, num_sliding_layers=0, num_kv_heads=3, head_dim=64, value_bytes=2)


@pytest.mark.parametrize("size", [0, -1, 3, 48, 512])
def test_page_sizes_are_powers_of_two_up_to_256(size: int) -> None:
    with pytest.raises(CorruptionError):
        PoolLayout(size)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64, 128, 256])
def test_pages_and_floor(size: int) -> None:
    layout = PoolLayout(size, 32)
    for length in range(3 * size + 2):
        assert (layout.pages_for(length) - 1) * size < length <= layout.pages_for(length) * size or length == 0
        assert layout.floor(length) <= length < layout.floor(length) + size
        assert layout.floor(length) % size == 0


def test_window_pages() -> None:
    layout = PoolLayout(16, 32)
    assert layout.window_first_page(100) == 4  # tokens 68..99
    assert layout.window_needed_page(99) == 4  # a token at 99 attends to 68..99
    assert layout.window_needed_page(32) == 0
    assert PoolLayout(1, 32).window_first_page(100) == 68


def test_need_in_the_window_pool_is_bounded() -> None:
    layout = PoolLayout(16, 512)
    assert request_need(layout, 100, 256) == (7, 7)
    assert request_need(layout, 100_000, 256) == (6250, 2 * 33 + 16)
    assert request_need(PoolLayout(16), 100, 256) == (7,)


def test_misfit_names_need_and_size() -> None:
    layout = PoolLayout(16, 512)
    assert misfit(layout, (8, 8), 7 * 16, 64) is None
    assert (
        misfit(layout, (8, 8), 7 * 16 + 1, 64) == "113 tokens need 8 pages of 16 tokens in the FULL pool, which has 7"
    )
    assert "SWA pool, which has 69" in str(misfit(layout, (8000, 70), 100_000, 64))


def test_page_bytes() -> None:
    assert page_bytes(SMOL, PoolLayout(16)) == (30 * 2 * 3 * 64 * 2 * 16,)
    assert page_bytes(GEMMA, PoolLayout(16, 512)) == (3 * 2 * 256 * 2 * 16, 15 * 2 * 256 * 2 * 16)


@pytest.mark.parametrize("window", [0, 64, 512])
@pytest.mark.parametrize("size", [1, 16, 256])
def test_pools_hold_one_request_of_all_tokens_and_the_windows_of_all(size: int, window: int) -> None:
    layout, chunk, running_max = PoolLayout(size, window), 256, 4
    for tokens in (2, 100, 8192, 8193):
        totals = pool_totals(layout, tokens, chunk=chunk, running_max=running_max)
        assert totals[Pool.FULL] == layout.pages_for(tokens) + NUM_RESERVED
        assert misfit(layout, totals, tokens, chunk) is None
        assert misfit(layout, totals, layout.pages_for(tokens) * size + 1, chunk) is not None
        if window:
            share = request_need(layout, tokens, chunk)[Pool.SWA]
            assert totals[Pool.SWA] == min(totals[Pool.FULL], running_max * share + NUM_RESERVED)
