"""Conversations whose turns run ahead and guess: nothing is left behind a finish, in either pool."""

import pytest
from tests.support.fake_backend import VOCAB_SIZE, expected_tokens
from tests.support.session_world import SessionWorld
from tests.support.world import WorldConfig

from sojourn.core.step import SamplingParams
from sojourn.engine.events import FinishReason
from sojourn.sessions.service import TurnParams

depths = pytest.mark.parametrize("depth", [0, 1])
caches = pytest.mark.parametrize("cache", ["radix", "none"])


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(salt * 31 + position * 7) % VOCAB_SIZE for position in range(length)]


def world_of(cache: str, page_size: int, window: int, depth: int, drafts_max: int = 6) -> SessionWorld:
    config = WorldConfig(
        cache=cache,
        page_size=page_size,
        window=window,
        num_pages=2048 // page_size,
        context=1024,
        drafts_max=drafts_max,
        drafts_right=0.9,
    )
    return SessionWorld(config, depth=depth)


def check_ends_at(world: SessionWorld, session_id: str, length: int) -> None:
    """No page, length or cursor is past the history, in any pool; the last token has no KV, and need not."""
    slot = world.slots.slot(session_id)
    assert slot is not None
    assert slot.holding is not None
    holding, pages_for = slot.holding, world.slots.book.layout.pages_for
    assert length - 1 <= holding.kv_committed_len <= holding.kv_allocated_len <= length
    for pages in holding.lists:
        assert pages.size == pages_for(holding.kv_allocated_len)
        assert pages.swept <= pages.size


@depths
@caches
@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("page_size", [1, 16])
def test_turns_of_exactly_n_tokens_leave_no_page_past_them(cache: str, page_size: int, window: int, depth: int) -> None:
    world = world_of(cache, page_size, window, depth)
    session_id = world.service.open()
    length = 0
    for count in range(1, 10):
        new = prompt_of(5 + count, count)
        end = world.run_turn(session_id, new, count)
        length += len(new) + count
        assert end.usage.completion_tokens == count
        assert end.reason is FinishReason.LENGTH
        check_ends_at(world, session_id, length)
    scheduler = world.world.scheduler.statistics()
    assert 0 < scheduler.accepted < scheduler.drafted
    world.close_all()


@depths
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_fifty_turns_keep_one_window_each(page_size: int, depth: int) -> None:
    window = 21
    world = world_of("radix", page_size, window, depth)
    session_ids = [world.service.open() for _ in range(3)]
    for turn in range(50):
        for salt, session_id in enumerate(session_ids):
            if turn < 16 or salt == 0:
                world.run_turn(
                    session_id, prompt_of(3 + turn % 5, turn + salt), TurnParams(max_new_tokens=1 + turn % 9)
                )
                own, leased = list(world.slots.pages_by_pool(session_id).values())[1]
                assert own + leased <= world.slots.book.layout.pages_for(window) + 1
    world.close_all()


@depths
@caches
@pytest.mark.parametrize("offset", range(1, 16))
def test_a_stop_at_every_offset(cache: str, depth: int, offset: int) -> None:
    """Wherever in a verified run the stop falls: the next turn continues on what was told, and on nothing else."""
    world = world_of(cache, 4, 24, depth)
    session_id = world.service.open()
    opening = prompt_of(30)
    sampling = SamplingParams(presence_penalty=0.3)
    stop_id = expected_tokens(opening, 16)[offset - 1]
    world.run_turn(session_id, opening, TurnParams(sampling, 16, stop_ids=frozenset({stop_id})))
    check_ends_at(world, session_id, len(world.history(session_id)))
    assert world.history(session_id)[-1] == stop_id
    end = world.run_turn(session_id, [1, 2, 3], TurnParams(sampling, 16))
    assert end.usage.cached_tokens >= len(opening), "what had been said was not computed again"
    world.close_all()
