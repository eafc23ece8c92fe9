"""Requests that run ahead of what is known, and drafts: what is planned, what stands, what is left behind."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.fake_backend import VOCAB_SIZE, expected_completion, expected_tokens
from tests.support.world import World, WorldConfig

from sojourn.core.ids import SeqId, StepId
from sojourn.core.step import SamplingParams, StepPlan
from sojourn.scheduler.stop import FinishReason
from sojourn.spec.protocol import DraftAsk, NoDrafter

PROMPT = [7, 3, 9, 4]


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(salt * 31 + position * 7) % VOCAB_SIZE for position in range(length)]


class Right(NoDrafter):
    """Always right, about the one request there is, and as long as it may be."""

    def __init__(self, says: Sequence[int]) -> None:
        self._says = list(says)
        self._at = 0
        self.asked: list[int] = []

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        self._at += len(tokens)

    def propose(self, asks: Sequence[DraftAsk]) -> list[tuple[int, ...]]:
        (ask,) = asks
        self.asked.append(ask.num_max)
        return [tuple(self._says[self._at : self._at + ask.num_max])]


class Times:
    """A stop matcher that ends at the n-th token."""

    def __init__(self, count: int) -> None:
        self.count = count

    def feed(self, token_id: int) -> str | None:
        self.count -= 1
        return None if self.count else "enough"


def world_of(
    says: Sequence[int], *, depth: int, drafts_max: int = 4, config: WorldConfig | None = None
) -> tuple[World, Right]:
    drafter = Right(says)
    config = replace(config or WorldConfig(), page_size=1, drafts_max=drafts_max)
    return World(config, depth=depth, drafter=drafter), drafter


depths = pytest.mark.parametrize("depth", [0, 1, 2])


@depths
def test_drafts_that_are_right_save_steps(depth: int) -> None:
    says = expected_tokens(PROMPT, 41)
    world, _ = world_of(says, depth=depth)
    request_id = world.submit(PROMPT, 41)
    world.run()
    assert world.records[request_id].tokens == says
    assert world.backend.steps == 1 + 40 // 5, "the prompt, then five tokens a step; nothing runs past the end"
    statistics = world.scheduler.statistics()
    assert (statistics.drafted, statistics.accepted) == (32, 32)
    world.close()


@depths
@pytest.mark.parametrize("count", range(1, 14))
def test_nothing_is_asked_for_past_the_last_token(depth: int, count: int) -> None:
    """However the length falls on the runs: the last token's KV is never computed, and no place past it taken. The pool
    has what the request may come to hold, and not a place more.
    """
    says = expected_tokens(PROMPT, count)
    world, _ = world_of([*says, *[0] * 20], depth=depth, config=WorldConfig(num_pages=len(PROMPT) + count - 1))
    request_id = world.submit(PROMPT, count)
    world.run()
    assert world.records[request_id].tokens == says
    assert world.records[request_id].reason is FinishReason.LENGTH
    world.close()


@depths
@pytest.mark.parametrize("end", range(1, 13))
@pytest.mark.parametrize("by", ["id", "matcher", "both"])
def test_the_first_stop_of_a_run_wins(depth: int, end: int, by: str) -> None:
    says = expected_tokens(PROMPT, 30)
    stop_ids = frozenset({says[end - 1]}) if by != "matcher" else frozenset()
    expected = expected_completion(PROMPT, 30, stop_ids) if stop_ids else says
    matcher = Times(min(end, len(expected)) if by == "matcher" else len(expected) + 1) if by != "id" else None
    if by == "matcher":
        expected = says[:end]
    world, _ = world_of(says, depth=depth)
    request_id = world.submit(PROMPT, 30, stop_ids=stop_ids, matcher=matcher)
    world.run()
    record = world.records[request_id]
    assert record.tokens == expected
    assert record.end is not None
    assert record.end.usage.completion_tokens == len(expected)
    assert record.end.stop_match == ("enough" if by == "matcher" else expected[-1])
    world.close()


def test_with_a_step_in_flight_the_next_token_is_planned_unknown() -> None:
    world, _ = world_of(expected_tokens(PROMPT, 9), depth=1)
    world.submit(PROMPT, 9)
    first = world.scheduler.plan(StepId(1))
    second = world.scheduler.plan(StepId(2))
    third = world.scheduler.plan(StepId(3))
    assert [plan.work[0].tokens for plan in (first, second, third)] == [tuple(PROMPT), (), ()]
    assert [plan.work[0].start for plan in (first, second, third)] == [0, 4, 5], "the least it can be"
    assert [plan.work[0].end_max for plan in (second, third)] == [9, 12], "five more at most; the last has no KV"
    assert not first.work[0].takes_previous
    assert first.work[0].begins is not None
    assert second.work[0].takes_previous


def test_what_surely_ends_in_flight_is_not_planned_on() -> None:
    world, _ = world_of([], depth=1, drafts_max=0)
    world.submit(PROMPT, 2)
    plans = [world.scheduler.plan(StepId(step)) for step in (1, 2, 3)]
    assert [len(plan.work) for plan in plans] == [1, 1, 0]


def test_a_prompt_that_is_only_computed_never_runs_ahead() -> None:
    world, _ = world_of([], depth=1)
    world.submit(PROMPT, 0)
    assert [len(world.scheduler.plan(StepId(step)).work) for step in (1, 2)] == [1, 0]


def test_a_row_given_up_is_told_with_the_next_step_that_runs() -> None:
    world, _ = world_of([], depth=1, drafts_max=0)
    request_id = world.submit(PROMPT, 9)
    (begun,) = world.scheduler.plan(StepId(1)).work
    world.abort(request_id)
    assert world.scheduler.plan(StepId(2)) == StepPlan(StepId(2), ())
    world.submit(PROMPT, 9)
    follower = world.scheduler.plan(StepId(2))
    assert follower.ends == (begun.seq,)
    assert follower.work[0].seq == begun.seq, "and may be somebody's in the same step"


@depths
def test_drafts_take_what_prompts_leave(depth: int) -> None:
    says = expected_tokens(PROMPT, 500)
    config = WorldConfig(step_tokens_max=20, chunk_tokens_max=8, seqs_max=2, num_pages=800, context=800)
    world, drafter = world_of(says, depth=depth, drafts_max=30, config=config)
    world.submit(PROMPT, 500)
    for _ in range(4):
        world.step()
    assert max(drafter.asked) == 19, "nobody else is there"
    drafter.asked.clear()
    other = world.submit(prompt_of(61), 0)
    for _ in range(8):
        world.step()
    assert min(drafter.asked) == 11, "one token of its own, and a chunk of eight"
    assert max(world.backend.row_counts) == 20
    world.run()
    assert world.records[other].reason is FinishReason.LENGTH


@depths
def test_for_drafts_nobody_is_retracted(depth: int) -> None:
    """Both fit to the last page; the places that drafts would like are the other's."""
    prompts = [prompt_of(20, salt) for salt in (1, 2)]
    config = WorldConfig(page_size=1, num_pages=2 * (20 + 9), drafts_max=8, drafts_right=0.5, seqs_max=2)
    world = World(config, depth=depth)
    ids = [world.submit(prompt, 10) for prompt in prompts]
    world.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert world.records[request_id].tokens == expected_tokens(prompt, 10)
    assert world.scheduler.statistics().retractions == 0
    world.close()


@depths
@pytest.mark.parametrize("end", ["abort", "interrupt"])
@pytest.mark.parametrize("steps", range(1, 8))
def test_an_end_from_outside_with_drafts_in_flight(depth: int, steps: int, end: str) -> None:
    sampling = SamplingParams(presence_penalty=0.5)
    world = World(WorldConfig(page_size=4, drafts_max=5, drafts_right=0.8, chunk_tokens_max=3), depth=depth)
    request_id = world.submit(prompt_of(7), 60, sampling=sampling)
    for _ in range(steps):
        world.step()
    (world.abort if end == "abort" else world.interrupt)(request_id)
    record = world.records[request_id]
    assert record.tokens == expected_tokens(prompt_of(7), len(record.tokens), sampling)
    follower = world.submit(prompt_of(7), 20, sampling=sampling)
    world.run()
    assert world.records[follower].tokens == expected_tokens(prompt_of(7), 20, sampling)
    world.close()
