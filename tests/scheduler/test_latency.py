"""How wide long prompts may make a step."""

import random

import pytest
from tests.support.world import World, WorldConfig

from sojourn.core.ids import StepId
from sojourn.scheduler.budget import TokenBudget
from sojourn.scheduler.latency import QUIET_STEPS, ROWS_MIN, SHORT_TOKENS, LatencyBound, RowCost

WIDE = 20  # rows


@pytest.mark.parametrize("fixed", [2.0, 20.0, 90.0])
def test_what_a_row_costs_is_learned_from_steps_of_any_width(fixed: float) -> None:
    """Also on a machine where one step in five is held up by something else."""
    rng, cost = random.Random(f"{fixed}"), RowCost()
    for _ in range(400):
        rows = rng.choice([1, 2, 5, 16, 40])
        held_up = 5.0 if rng.random() < 0.2 else rng.uniform(0.9, 1.1)
        cost.measured(rows, 0.001 * (fixed + rows) * held_up)
    assert fixed / 2 < cost.row_worth < fixed * 2 + 4


def test_steps_of_one_width_and_a_clock_that_stands_still_say_nothing() -> None:
    cost = RowCost()
    before = cost.row_worth
    for _ in range(50):
        cost.measured(4, 0.01)
        cost.measured(9, 0.0)
    assert cost.row_worth == before


def test_the_bound_holds_for_a_while_after_a_short_prompt_and_leaves_long_ones_something() -> None:
    bound = LatencyBound(512)
    assert bound.is_short(SHORT_TOKENS)
    assert not bound.is_short(SHORT_TOKENS + 1)
    assert not LatencyBound(16).is_short(17), "it is not through in one chunk"
    assert bound.rows_max(StepId(1), 0) is None
    bound.short_ran(StepId(5))
    assert bound.rows_max(StepId(5), 0) == 6 >= ROWS_MIN, "as an empty step"
    assert bound.rows_max(StepId(5), 100) == 53, "half of what the others cost"
    assert bound.rows_max(StepId(5 + QUIET_STEPS), 0) == 6
    assert bound.rows_max(StepId(6 + QUIET_STEPS), 0) is None


def test_long_prompts_share_their_bound_and_short_ones_do_not_count() -> None:
    budget = TokenBudget(64, 32, long_left=10)
    assert budget.share_out([100, 12, 200, 6], [True, False, True, False], keeps_door=False) == [10, 12, 0, 6]
    assert budget.chunk(50, is_long=True) == 0
    assert budget.chunk(20) == 20
    assert budget.tokens_left == 64 - 28
    oldest_is_short = TokenBudget(64, 32, long_left=10)
    assert oldest_is_short.share_out([5, 8, 200], [False, True, True], keeps_door=False) == [5, 8, 2]


def test_a_long_prompt_moves_in_every_step_and_makes_none_wide_while_short_ones_come() -> None:
    world = World(WorldConfig(context=512, num_pages=128, seqs_max=8, step_tokens_max=72, chunk_tokens_max=64))
    long = None
    for number in range(40):
        world.submit([number % 31, number % 29, 5], 2)
        if number == 1:
            long = world.submit([number % 31 for number in range(400)], 3)
        world.step()
        if number > 1:
            assert ROWS_MIN < world.backend.row_counts[-1] <= WIDE
    assert long is not None
    world.run()
    assert max(world.backend.row_counts) <= WIDE, "nor right after"
    assert world.records[long].end is not None
    alone = world.submit([number % 30 for number in range(400)], 3)
    for _ in range(QUIET_STEPS):
        world.step()
    world.run()
    assert world.records[alone].end is not None


def test_another_long_prompt_waits_in_line_while_the_bound_is_used_up() -> None:
    world = World(WorldConfig(context=512, num_pages=128, seqs_max=8, step_tokens_max=72, chunk_tokens_max=64))
    world.submit([1, 2, 3], 30)
    world.step()
    first, second = (world.submit([(3 * number + salt) % 31 for number in range(100)], 1) for salt in (1, 2))
    world.step()
    assert dict(world.scheduler.statistics().waiting_for)["in_line"] == 1
    world.run()
    ends = [world.records[request].end for request in (first, second)]
    assert all(end is not None for end in ends)
