"""Log-probabilities of a turn's new tokens: told whole, though the session's KV is used, and never of its history."""

import pytest
from tests.support.fake_backend import expected_logprobs
from tests.support.session_world import SessionWorld
from tests.support.world import Record, WorldConfig

from sojourn.core.step import SamplingParams
from sojourn.sessions.service import TurnParams

FIRST, SECOND, THIRD = list(range(30, 67)), [9, 8, 7, 6, 5, 4, 3, 2, 1] * 3, [11]
SCORED = TurnParams(SamplingParams(num_logprobs=0), max_new_tokens=5, logprobs_from=0)


def told(world: SessionWorld, session_id: str, new_ids: list[int], params: TurnParams = SCORED) -> Record:
    """A turn, and what it was told of its new tokens, checked against the whole prompt's."""
    history = world.history(session_id)
    record = world.turn(session_id, new_ids, params)
    world.run()
    prompt = [*history, *new_ids]
    first = max(1, len(history) + (params.logprobs_from or 0))
    assert [sample.token for sample in record.known] == prompt[first:]
    assert [sample.logprob for sample in record.known] == expected_logprobs(prompt)[first - 1 :]
    return record


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("page_size", [1, 16])
def test_the_sessions_kv_is_used_up_to_the_last_token_of_its_history(page_size: int, window: int, depth: int) -> None:
    pages = 400 if page_size == 1 else 64
    world = SessionWorld(WorldConfig(page_size=page_size, num_pages=pages, window=window), depth=depth)
    name = world.service.open()
    told(world, name, FIRST)
    for new_ids in (SECOND, THIRD):
        before = len(world.history(name))
        end = told(world, name, new_ids).end
        assert end is not None
        assert (end.usage.cached_source, end.usage.cached_tokens) == ("session", before - 1)
    world.close_all()


@pytest.mark.parametrize("window", [0, 24])
def test_after_an_append_the_row_before_the_new_tokens_is_computed_again(window: int) -> None:
    """An append leaves the KV of its last token, too."""
    world = SessionWorld(WorldConfig(window=window))
    name = world.service.open()
    told(world, name, FIRST, TurnParams(SCORED.sampling, max_new_tokens=0, logprobs_from=0))
    end = told(world, name, SECOND).end
    assert end is not None
    assert end.usage.cached_tokens == len(FIRST) - 1
    told(world, name, THIRD, TurnParams(SCORED.sampling, max_new_tokens=3, logprobs_from=1))
    world.close_all()


@pytest.mark.parametrize("window", [0, 24])
def test_without_kv_of_its_own_a_session_is_told_the_same(window: int) -> None:
    world = SessionWorld(WorldConfig(window=window))
    name = world.service.open()
    told(world, name, FIRST)
    world.slots.demote(name)
    told(world, name, SECOND)
    world.service.rewind(name, length=len(FIRST) - 3)
    told(world, name, SECOND)
    world.slots.flush()
    told(world, name, THIRD)
    other = world.service.fork(name, length=20)
    told(world, other, SECOND)
    world.close_all()
