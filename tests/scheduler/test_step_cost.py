"""What steps cost beside each other, from scripted measurements."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import CorruptionError
from sojourn.scheduler.step_cost import StepCost


def ratio(cost: StepCost, rows: int, to: int = 1) -> float:
    return cost.relative(rows) / cost.relative(to)


def learned(seconds: dict[int, float], rounds: int = 30) -> StepCost:
    cost = StepCost()
    for _, (rows, value) in itertools.product(range(rounds), seconds.items()):
        cost.measured(rows, value)
    return cost


def test_before_anything_is_measured_eight_rows_are_about_two_of_one() -> None:
    assert 2 < ratio(StepCost(), 8) < 2.5


def test_what_was_measured_is_what_is_told() -> None:
    cost = learned({1: 0.010, 3: 0.012, 8: 0.030})
    assert ratio(cost, 3) == pytest.approx(1.2, rel=0.03)
    assert ratio(cost, 8) == pytest.approx(3, rel=0.03)


def test_between_two_sizes_the_cost_is_between_theirs() -> None:
    cost = learned({1: 0.010, 3: 0.012, 8: 0.030})
    assert ratio(cost, 3) < ratio(cost, 5) < ratio(cost, 8)


def test_beyond_what_was_measured_it_goes_on_growing() -> None:
    cost = learned({4: 0.020, 8: 0.024})
    assert ratio(cost, 1, to=4) < 1
    assert ratio(cost, 12, to=8) > 1


def test_a_slow_step_now_and_then_changes_nothing_much() -> None:
    cost = learned({1: 0.010, 4: 0.014})
    before = ratio(cost, 4)
    cost.measured(4, 0.500)
    assert ratio(cost, 4) == pytest.approx(before, rel=0.1)


def test_the_first_measurement_of_a_size_is_not_believed_alone() -> None:
    cost = learned({1: 0.010})
    before = ratio(cost, 4)
    cost.measured(4, 0.500)
    assert ratio(cost, 4) == pytest.approx(before, rel=0.3)
    for _ in range(8):
        cost.measured(1, 0.010)
        cost.measured(4, 0.016)
    assert ratio(cost, 4) == pytest.approx(1.6, rel=0.05)


def test_a_longer_history_is_no_reason_to_forget_what_other_sizes_cost() -> None:
    """Only decodes are measured after it, which take twice as long: four rows are not cheap for that."""
    cost = learned({1: 0.010, 4: 0.014})
    for _ in range(40):
        cost.measured(1, 0.020)
    assert ratio(cost, 4) == pytest.approx(1.4, rel=0.1)


def test_what_a_size_costs_now_wins_in_time() -> None:
    cost = learned({1: 0.010, 4: 0.014})
    for _ in range(30):
        cost.measured(1, 0.010)
        cost.measured(4, 0.040)
    assert ratio(cost, 4) == pytest.approx(4, rel=0.05)


def test_what_a_size_costs_is_learned_although_another_is_seldom_measured() -> None:
    """Between two decodes there are many steps of nine rows, which look like a machine that has become slower."""
    cost = StepCost()
    for _ in range(6):
        for _ in range(20):
            cost.measured(9, 0.080)
        cost.measured(1, 0.010)
    assert ratio(cost, 9) == pytest.approx(8, rel=0.05)


def test_what_a_guess_is_expected_to_cost_is_added_to_each_row() -> None:
    cost = StepCost(guess=0.5)
    assert ratio(cost, 3) == pytest.approx(ratio(StepCost(), 3) + 1.0)


def test_a_clock_that_stands_still_says_nothing() -> None:
    cost = learned({1: 0.010, 4: 0.014})
    before = ratio(cost, 4)
    cost.measured(4, 0.0)
    assert ratio(cost, 4) == before


def test_a_step_without_rows_is_a_broken_law() -> None:
    with pytest.raises(CorruptionError):
        StepCost().measured(0, 0.01)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(1e-6, 100)), max_size=60))
def test_whatever_is_measured_a_cost_is_a_positive_number(told: list[tuple[int, float]]) -> None:
    cost = StepCost()
    for rows, seconds in told:
        cost.measured(rows, seconds)
    assert all(0 < cost.relative(rows) < float("inf") for rows in range(1, 60))
