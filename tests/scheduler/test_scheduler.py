"""Who runs and how far: chunks, mixing, batches, shortage and refusal, over the real caches."""

import pytest
from tests.support.fake_backend import VOCAB_SIZE, expected_completion, expected_tokens
from tests.support.world import World, WorldConfig

from sojourn.core.errors import ClientError, ConflictError, CorruptionError, NotFoundError
from sojourn.core.ids import RequestId, StepId
from sojourn.core.step import SamplingParams, StepResult
from sojourn.scheduler.request import Request
from sojourn.scheduler.scheduler import SchedulerConfig
from sojourn.scheduler.stop import FinishReason

KINDS = [(cache, page, window) for cache in ("radix", "none") for page in (1, 16) for window in (0, 32)]
kinds = pytest.mark.parametrize(("cache", "page_size", "window"), KINDS)


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(salt * 31 + position * 7 + position // 5) % VOCAB_SIZE for position in range(length)]


def config_of(
    cache: str,
    page_size: int,
    window: int,
    *,
    seqs_max: int = 4,
    step_tokens_max: int = 64,
    chunk_tokens_max: int = 16,
    retract_every: int = 0,
) -> WorldConfig:
    return WorldConfig(
        cache=cache,
        page_size=page_size,
        num_pages=640 // page_size,
        window=window,
        seqs_max=seqs_max,
        step_tokens_max=step_tokens_max,
        chunk_tokens_max=chunk_tokens_max,
        retract_every=retract_every,
    )


# -- chunks and mixing


@kinds
@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_chunks_do_not_change_the_output(cache: str, page_size: int, window: int, chunk: int) -> None:
    world = World(config_of(cache, page_size, window, chunk_tokens_max=chunk))
    prompt = prompt_of(50)
    request_id = world.submit(prompt, 12)
    world.run()
    assert world.records[request_id].tokens == expected_tokens(prompt, 12)
    assert world.backend.row_counts[0] == min(chunk, 50)
    assert world.backend.rows == 50 + 11  # the last token's KV is never computed
    world.close()


def test_running_decodes_share_their_steps_with_chunks_of_a_prompt() -> None:
    world = World(WorldConfig(chunk_tokens_max=16, step_tokens_max=20))
    decoding = world.submit(prompt_of(20), 12)
    world.step()
    world.step()
    prefilling = world.submit(prompt_of(40, salt=1), 4)
    world.step()
    assert world.backend.row_counts[-1] == 1 + 16
    assert world.backend.batch_sizes[-1] == 2
    world.run()
    assert world.records[decoding].tokens == expected_tokens(prompt_of(20), 12)
    assert world.records[prefilling].tokens == expected_tokens(prompt_of(40, salt=1), 4)


def test_decodes_are_served_before_chunks_when_the_budget_is_small() -> None:
    world = World(WorldConfig(chunk_tokens_max=16, step_tokens_max=4))
    first, second = (world.submit(prompt_of(3, salt), 20) for salt in (1, 2))
    world.step()
    world.step()
    third = world.submit(prompt_of(30, salt=3), 2)
    before = {request: len(world.records[request].tokens) for request in (first, second)}
    for _ in range(5):
        world.step()
        assert world.backend.row_counts[-1] <= 4
    for request, count in before.items():
        assert len(world.records[request].tokens) == count + 5
    world.run()
    assert world.records[third].tokens == expected_tokens(prompt_of(30, salt=3), 2)


@kinds
def test_a_crowd_gets_what_each_would_get_alone(cache: str, page_size: int, window: int) -> None:
    world = World(config_of(cache, page_size, window, seqs_max=8, step_tokens_max=48))
    prompts = [prompt_of(5 + 9 * salt, salt) for salt in range(20)]
    sampling = SamplingParams(temperature=0.8, seed=7)
    ids = [world.submit(prompt, 40, sampling=sampling) for prompt in prompts]
    world.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert world.records[request_id].tokens == expected_tokens(prompt, 40, sampling)
    assert max(world.backend.batch_sizes) == 8
    assert max(world.backend.row_counts) <= 48
    world.close()


def test_penalties_see_the_whole_sequence() -> None:
    """The back end compares each history it is given with the KV before the row."""
    world = World(WorldConfig())
    prompt = prompt_of(20)
    request_id = world.submit(prompt, 6, sampling=SamplingParams(repetition_penalty=1.2))
    world.run()
    assert world.records[request_id].tokens == expected_tokens(prompt, 6)


def test_a_shared_prefix_is_computed_once() -> None:
    world = World(WorldConfig(page_size=16))
    system = prompt_of(48)
    world.submit([*system, 1], 2)
    world.run()
    rows = world.backend.rows
    second = world.submit([*system, 2, 3], 2)
    world.run()
    end = world.records[second].end
    assert end is not None
    assert end.usage.cached_tokens == 48
    assert world.backend.rows == rows + 2 + 1


# -- ends


def test_an_eos_counts_and_ends() -> None:
    prompt = prompt_of(9)
    ending = expected_tokens(prompt, 6)[4]
    world = World(WorldConfig())
    request_id = world.submit(prompt, 30, stop_ids=frozenset({ending}))
    world.run()
    record = world.records[request_id]
    assert record.tokens == expected_completion(prompt, 30, frozenset({ending}))
    assert record.reason is FinishReason.STOP
    assert record.end is not None
    assert record.end.stop_match == ending
    assert record.end.usage.completion_tokens == len(record.tokens)


def test_a_request_ends_at_the_context() -> None:
    world = World(WorldConfig(context=40, num_pages=8))
    request_id = world.submit(prompt_of(30), 1000)
    world.run()
    record = world.records[request_id]
    assert record.tokens == expected_tokens(prompt_of(30), 10)
    assert record.reason is FinishReason.LENGTH


@pytest.mark.parametrize("end", ["abort", "interrupt"])
@pytest.mark.parametrize("steps", range(12))
@kinds
def test_an_end_from_outside_at_every_step(cache: str, page_size: int, window: int, steps: int, end: str) -> None:
    """Waiting, between chunks, decoding, and one step before it would have finished."""
    world = World(config_of(cache, page_size, window, chunk_tokens_max=16))
    prompt = prompt_of(70)
    request_id = world.submit(prompt, 8)
    for _ in range(steps):
        world.step()
    record = world.records[request_id]
    assert record.end is None
    (world.abort if end == "abort" else world.interrupt)(request_id)
    assert record.reason.value == (end if record.tokens else "abort")
    assert record.tokens == expected_tokens(prompt, len(record.tokens))
    assert not world.loop.has_work
    with pytest.raises(NotFoundError):
        world.loop.abort(request_id)
    follower = world.submit(prompt, 8)
    world.run()
    assert world.records[follower].tokens == expected_tokens(prompt, 8)
    world.close()


# -- shortage


@kinds
@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_forced_retraction_changes_nothing_that_is_seen(cache: str, page_size: int, window: int, every: int) -> None:
    world = World(config_of(cache, page_size, window, retract_every=every))
    prompts = [prompt_of(12 + 11 * salt, salt) for salt in range(5)]
    ids = [world.submit(prompt, 9) for prompt in prompts]
    world.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert world.records[request_id].tokens == expected_tokens(prompt, 9)
    statistics = world.scheduler.statistics()
    assert statistics.retractions > 3
    assert statistics.retracted_tokens >= statistics.retractions, "who runs has launched a token at least"
    world.close()


@kinds
def test_short_of_pages_the_youngest_waits_and_all_finish(cache: str, page_size: int, window: int) -> None:
    """Each alone fits; together they outgrow the pool while decoding."""
    config = WorldConfig(
        cache=cache, page_size=page_size, window=window, num_pages=160 // page_size, seqs_max=4, chunk_tokens_max=16
    )
    world = World(config)
    prompts = [prompt_of(20, salt) for salt in range(4)]
    ids = [world.submit(prompt, 60) for prompt in prompts]
    world.run()
    finished = [world.records[request_id] for request_id in ids]
    for record, prompt in zip(finished, prompts, strict=True):
        assert record.tokens == expected_tokens(prompt, 60)
    ends = [record.end for record in finished]
    assert ends[0] is not None
    assert ends[0].usage.num_retractions == 0, "the oldest is never retracted"
    assert world.scheduler.statistics().retractions > 0
    world.close()


@pytest.mark.parametrize("page_size", [1, 16])
def test_one_request_may_have_the_whole_pool(page_size: int) -> None:
    pages = 64 // page_size
    world = World(WorldConfig(page_size=page_size, num_pages=pages))
    first = world.submit(prompt_of(10), 5)
    whole = world.submit(prompt_of(40, salt=1), 25)  # 64 tokens of KV: the last token has none
    world.run()
    assert world.records[first].tokens == expected_tokens(prompt_of(10), 5)
    assert world.records[whole].tokens == expected_tokens(prompt_of(40, salt=1), 25)
    with pytest.raises(ClientError, match=rf"{65} tokens need .* {pages}") as refusal:
        world.submit(prompt_of(40, salt=1), 26)
    assert refusal.value.code == "capacity_exceeded"
    world.close()


# -- the door


def test_a_prompt_that_leaves_no_room_is_refused_with_both_lengths() -> None:
    world = World(WorldConfig(context=50))
    for length in (50, 51, 400):
        with pytest.raises(ClientError, match=rf"{length} tokens .* 50") as refusal:
            world.submit(prompt_of(length), 1)
        assert refusal.value.param == "prompt"
    assert not world.loop.has_work
    last = world.submit(prompt_of(49), 5)
    world.run()
    assert world.records[last].tokens == expected_tokens(prompt_of(49), 1)


@pytest.mark.parametrize(("length", "max_new_tokens", "param"), [(0, 5, "prompt"), (5, -1, "max_tokens")])
def test_nothing_to_do_is_refused(length: int, max_new_tokens: int, param: str) -> None:
    world = World(WorldConfig())
    with pytest.raises(ClientError) as refusal:
        world.submit(prompt_of(length), max_new_tokens)
    assert refusal.value.param == param
    assert not world.loop.has_work


def test_a_live_request_id_is_not_given_twice() -> None:
    world = World(WorldConfig())
    request = world.request(prompt_of(5))
    world.loop.submit(request)
    twin = world.request(prompt_of(5))
    twin.cached.request_id = request.request_id
    with pytest.raises(ConflictError):
        world.loop.submit(twin)


def test_an_unknown_request_is_not_found() -> None:
    world = World(WorldConfig())
    with pytest.raises(NotFoundError):
        world.scheduler.end(RequestId("nobody"), FinishReason.ABORT)


def test_steps_settle_in_order() -> None:
    world = World(WorldConfig())
    world.submit(prompt_of(5))
    plan = world.scheduler.plan(StepId(1))
    assert len(plan.work) == 1
    with pytest.raises(CorruptionError):
        world.scheduler.settle(StepResult(StepId(2), ((),)))


def test_a_configuration_without_room_for_its_places_is_refused() -> None:
    with pytest.raises(CorruptionError):
        SchedulerConfig(context_length=100, seqs_max=8, step_tokens_max=4)


# -- steps in flight


def is_in_flight(request: Request) -> bool:
    holding = request.cached.holding
    return holding is not None and request.num_launched > holding.kv_committed_len


@kinds
@pytest.mark.parametrize("every", [0, 3])
def test_results_of_requests_that_ended_meanwhile_are_dropped(
    cache: str, page_size: int, window: int, every: int
) -> None:
    """One step in flight while the next is planned: an abort in between leaves a zombie, and everyone else is exact."""
    world = World(config_of(cache, page_size, window, retract_every=every), depth=1)
    prompts = [prompt_of(15 + salt, salt) for salt in range(6)]
    ids = [world.submit(prompt, 10) for prompt in prompts]
    for _ in range(5):
        world.step()
    ended = [request for request in world.scheduler.running() if is_in_flight(request)][:2]
    assert ended
    world.abort(ended[0].request_id)
    for request in ended[1:]:
        world.interrupt(request.request_id)
    world.run()
    assert world.scheduler.statistics().zombies > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        record = world.records[request_id]
        count = len(record.tokens) if request_id in [request.request_id for request in ended] else 10
        assert record.tokens == expected_tokens(prompt, count)
    world.close()
