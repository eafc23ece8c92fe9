"""Log-probabilities of a prompt's tokens: all that are asked for, once each, whatever happened to the request meanwhile."""

import pytest
from tests.support.fake_backend import EOS_ID, expected_logprobs, expected_tokens
from tests.support.world import World, WorldConfig

from sojourn.core.step import SamplingParams

PROMPT = [(7 * i + i // 5) % 90 for i in range(70)]
SCORED = SamplingParams(num_logprobs=2)


def check(world: World, request_id: str, prompt: list[int], first: int) -> None:
    """Every token from `first` on was told, in order, with the log-probability that the whole prompt gives it."""
    known = world.records[request_id].known  # type: ignore[index]
    assert [sample.token for sample in known] == prompt[first:]
    assert [sample.logprob for sample in known] == expected_logprobs(prompt)[first - 1 :]
    assert all(len(sample.top) == 2 for sample in known)


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("first", [0, 1, 2, 33, 69])
def test_chunks_do_not_show(first: int, depth: int, chunk: int) -> None:
    world = World(WorldConfig(chunk_tokens_max=chunk), depth=depth)
    one = world.submit(PROMPT, 4, sampling=SCORED, logprobs_from=first)
    other = world.submit(PROMPT[:50], 4)
    world.run()
    check(world, one, PROMPT, max(1, first))
    assert world.records[one].tokens == expected_tokens(PROMPT, 4)
    assert world.records[other].known == []


@pytest.mark.parametrize("max_new_tokens", [0, 1])
def test_a_prompt_that_is_only_computed_is_told_whole(max_new_tokens: int) -> None:
    world = World(WorldConfig())
    one = world.submit(PROMPT, max_new_tokens, sampling=SCORED, logprobs_from=0)
    world.run()
    check(world, one, PROMPT, 1)


def test_a_single_token_has_nothing_to_tell() -> None:
    world = World(WorldConfig())
    one = world.submit([3], 2, sampling=SCORED, logprobs_from=0)
    world.run()
    assert world.records[one].known == []


@pytest.mark.parametrize("cached", [0, 16, 32, 64])
def test_the_cache_is_used_before_what_is_asked_for_and_not_behind_it(cached: int) -> None:
    world = World(WorldConfig())
    world.submit(PROMPT, 1)
    world.run()
    rows = world.backend.rows
    one = world.submit(PROMPT, 1, sampling=SCORED, logprobs_from=cached + 1)
    world.run()
    check(world, one, PROMPT, cached + 1)
    end = world.records[one].end
    assert end is not None
    assert end.usage.cached_tokens == cached
    assert world.backend.rows - rows == len(PROMPT) - cached


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("every", [2, 3, 5])
def test_retractions_tell_nothing_twice(every: int, depth: int, window: int) -> None:
    """What was told before is found in the cache again, as far as it goes."""
    world = World(WorldConfig(retract_every=every, chunk_tokens_max=8, window=window), depth=depth)
    prompts = [PROMPT[i:] + PROMPT[:i] for i in range(3)]
    ids = [world.submit(prompt, 6, sampling=SCORED, logprobs_from=0) for prompt in prompts]
    world.run()
    assert world.scheduler.statistics().retractions > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        check(world, request_id, prompt, 1)
        tokens = world.records[request_id].tokens
        assert tokens == expected_tokens(prompt, 6)[: len(tokens)]
        assert EOS_ID not in tokens[:-1]


def test_an_aborted_request_tells_no_more() -> None:
    world = World(WorldConfig(chunk_tokens_max=8))
    one = world.submit(PROMPT, 6, sampling=SCORED, logprobs_from=0)
    world.step()
    world.abort(one)
    world.run()
    assert [sample.token for sample in world.records[one].known] == PROMPT[1:9]
