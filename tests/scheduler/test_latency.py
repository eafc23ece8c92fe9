"""How wide long prompts may make a step."""

import random

import pytest
from tests.support.world import World, WorldConfig

from sojourn.scheduler.budget import TokenBudget
from sojourn.scheduler.latency import ROWS_MIN, SHORT_TOKENS, WAIT_SHARE, LatencyBound, RowCost

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


def test_the_bound_leaves_long_prompts_something_and_more_the_longer_no_short_one_came() -> None:
    bound = LatencyBound(512)
    assert bound.is_short(SHORT_TOKENS)
    assert not bound.is_short(SHORT_TOKENS + 1)
    assert not LatencyBound(16).is_short(17), "it is not through in one chunk"
    assert bound.rows_max(0) is None
    bound.short_ran()
    assert bound.rows_max(0) == 6 >= ROWS_MIN, "as an empty step"
    assert bound.rows_max(100) == 53, "half of what the others cost"
    for number in range(100):  # 5 ms and 1 ms a row, for 2.05 seconds
        rows = 10 + number % 11
        bound.measured(rows, 0.005 + 0.001 * rows)
    rows_max = bound.rows_max(20)
    assert rows_max is not None
    seconds = 0.005 + 0.001 * (rows_max + 20)
    assert 0.95 * seconds < WAIT_SHARE * 2.0 < 1.05 * seconds, "a share of the time in which nobody came"
    bound.short_ran()
    rows_max = bound.rows_max(0)
    assert rows_max is not None
    assert 4 <= rows_max <= 6


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
