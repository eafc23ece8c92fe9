"""Pools follow the options."""

from tests.backends.tiny import gemma, llama

from sojourn.app.config import EngineOptions
from sojourn.app.sizing import choose_size
from sojourn.core.step import Pool
from sojourn.pages.sizing import NUM_RESERVED, request_need

OPTIONS = EngineOptions(context=2048, page_size=4, chunk=64, max_running=2, overlap=False)


def test_the_window_pool_has_what_is_in_flight() -> None:
    """A request prefills one chunk beside the two windows it keeps; with overlap the next one is planned meanwhile."""
    for overlap, chunks in ((False, 1), (True, 2)):
        options = EngineOptions(context=2048, page_size=4, chunk=64, max_running=2, overlap=overlap)
        size = choose_size("tiny", gemma(), options)
        need = request_need(size.layout, 2048, 64 * chunks)
        assert size.totals[Pool.SWA] - NUM_RESERVED == 2 * need[Pool.SWA]


def test_a_model_without_windows_has_one_pool() -> None:
    assert choose_size("tiny", llama(), OPTIONS).totals == (2048 // 4 + NUM_RESERVED,)
