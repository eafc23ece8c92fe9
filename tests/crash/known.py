"""What everybody asks and what the answers are. All ask the same, in the same order: so whoever hears an answer first knows
it for all, and what a session holds follows from the number of its turns.
"""

import threading
from collections.abc import Sequence

from tests.api.test_sessions import GREEDY, Json, ids


def is_append(number: int) -> bool:
    """Some turns have no answer: their tokens are computed ahead."""
    return number % 6 == 5


def question(number: int) -> Json:
    """With the number of its turn: asked again, it is answered again and not run again."""
    body: Json = {"token_ids": ids(3 + number % 4, number), "turn": number, "wait": True}
    return body if is_append(number) else {**GREEDY, **body, "max_tokens": 4 + number % 5, "ignore_eos": True}


class Known:
    """Answers by number. Heard by many threads."""

    def __init__(self) -> None:
        self._answers: list[list[int]] = []
        self._lock = threading.Lock()

    def hear(self, number: int, token_ids: Sequence[int]) -> None:
        """The same as ever."""
        with self._lock:
            assert number <= len(self._answers), "nobody can be told an answer before those it follows"
            if number == len(self._answers):
                assert len(token_ids) == question(number).get("max_tokens", 0), (number, token_ids)
                self._answers.append(list(token_ids))
            told = self._answers[number]
        assert told == list(token_ids), f"turn {number} was answered {told} before and is now {token_ids}"

    def history(self, turns: int) -> list[int]:
        return [token for number in range(turns) for token in (*question(number)["token_ids"], *self._answers[number])]
