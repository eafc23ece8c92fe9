"""Arithmetic of pages, by hand."""

import pytest

from sojourn.core.errors import CorruptionError, ModelError
from sojourn.core.step import Pool
from sojourn.pages.sizing import (
    KvShape,
    PoolLayout,
    context_fits,
    misfit,
    page_bytes,
    pool_sizes,
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


@pytest.mark.parametrize("shape", [SMOL, GEMMA])
@pytest.mark.parametrize("budget", [1 << 24, 1 << 28, 1 << 30])
def test_pools_fill_the_budget_and_not_more(shape: KvShape, budget: int) -> None:
    layout = PoolLayout(16, 512 if shape.num_sliding_layers else 0)
    totals = pool_sizes(shape, layout, budget, context=8192, chunk=256, running_max=4)
    costs = page_bytes(shape, layout)
    used = sum(total * cost for total, cost in zip(totals, costs, strict=True))
    assert used <= budget < used + sum(costs)
    assert misfit(layout, totals, context_fits(layout, totals, 256), 256) is None


def test_a_model_that_only_slides_has_page_numbers_for_every_token() -> None:
    shape = KvShape(0, 4, 1, 64, 2)
    layout = PoolLayout(16, 64)
    totals = pool_sizes(shape, layout, 1 << 20, context=4096, chunk=64, running_max=2)
    assert totals[Pool.FULL] == 2 * 256 + 1
    assert totals[Pool.SWA] * page_bytes(shape, layout)[Pool.SWA] <= 1 << 20


def test_a_budget_below_one_page_says_so() -> None:
    with pytest.raises(ModelError, match="do not hold one page"):
        pool_sizes(SMOL, PoolLayout(16), 1000, context=64, chunk=64, running_max=1)


def test_the_longest_context_fits_and_one_page_more_does_not() -> None:
    for totals in ((100, 100), (1000, 40), (1000, 80)):
        layout = PoolLayout(16, 256)
        longest = context_fits(layout, totals, 64)
        assert misfit(layout, totals, longest, 64) is None
        assert misfit(layout, totals, longest + 16, 64) is not None
