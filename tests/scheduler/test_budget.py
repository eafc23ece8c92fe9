"""The token budget of a step."""

import pytest

from sojourn.core.errors import CorruptionError
from sojourn.scheduler.budget import TokenBudget


def test_a_chunk_is_bounded_by_its_size_the_prompt_and_what_is_left() -> None:
    budget = TokenBudget(tokens_left=20, chunk_max=16)
    assert budget.chunk(100) == 16
    assert budget.chunk(5) == 5
    budget.take(16)
    assert budget.chunk(100) == 4
    budget.take(4)
    assert budget.chunk(100) == 0


def test_a_decode_counts_its_drafts() -> None:
    budget = TokenBudget(tokens_left=6, chunk_max=16)
    budget.decode(1)
    budget.decode(4)
    assert budget.tokens_left == 1


def test_giving_away_more_than_the_step_has_is_a_broken_law() -> None:
    with pytest.raises(CorruptionError):
        TokenBudget(tokens_left=3, chunk_max=16).decode(4)
    with pytest.raises(CorruptionError):
        TokenBudget(tokens_left=3, chunk_max=16).take(4)
