"""Promise 1 on real models: random conversations whose every token, and its log-probability, is the stateless run's.

Six of the forty run with the other tests, all of them with `make e2e`. A case is its own seed: `-k smollm2-07`.
"""

from collections import Counter

import pytest

from sojourn.models.store import LoadedModel
from tests.e2e.conversations import MARKS, Conversations

CASES_PER_MODEL = 20
FEW = 3  # of each model, that run with the other tests
TURNS, TURNS_LONG = 10, 5
reached: Counter[str] = Counter()


def cases() -> list[object]:
    return [
        pytest.param(model, number, id=f"{model}-{number:02}", marks=[] if number < FEW else pytest.mark.e2e)
        for model in ("smollm2", "gemma3")
        for number in range(CASES_PER_MODEL)
    ]


@pytest.mark.parametrize(("model", "number"), cases())
def test_tokens_are_those_of_the_stateless_run(model: str, number: int, request: pytest.FixtureRequest) -> None:
    loaded: LoadedModel = request.getfixturevalue(model)
    is_long = model == "gemma3" and number % 2 == 0
    conversations = Conversations(f"{model}-{number:02}", loaded, is_long=is_long)
    reached.update(conversations.run(TURNS_LONG if is_long else TURNS))


@pytest.mark.e2e
def test_all_that_can_happen_did() -> None:
    """Equal because nothing happened is worth nothing. Needs all forty before it."""
    assert [mark for mark in MARKS if not reached[mark]] == [], reached
