"""How many tokens each request may run in one step: running decodes first, chunks of prompts with the rest.

Pure over integers. Results do not depend on it (the core is batch-invariant); latency and throughput do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.core.errors import law


@dataclass(slots=True)
class TokenBudget:
    """The tokens of one step still to be given away, and the most that one prompt may take of them."""

    tokens_left: int
    chunk_max: int
    long_left: int | None = None  # of them, for all long prompts together; None: no bound

    def decode(self, tokens: int) -> None:
        """Take the tokens of decodes, 1 each. They always fit: the budget covers every batch place."""
        law(tokens <= self.tokens_left, "%d decode tokens, %d left in the step", tokens, self.tokens_left)
        self.tokens_left -= tokens

    def chunk(self, remaining: int, *, is_long: bool = False) -> int:
        """How many of a prompt's `remaining` tokens this step may run: 0 when the step is full, or has no more for long
        ones. Takes nothing.
        """
        most = min(remaining, self.chunk_max, self.tokens_left)
        return most if self.long_left is None or not is_long else min(most, self.long_left)

    def share_out(self, prompts: Sequence[int], are_long: Sequence[bool], *, keeps_door: bool) -> list[int]:
        """Take tokens for running prompts with so much left to compute, oldest first: how many each may run.

        Half is the oldest's, so that it is not starved; then the shortest are served first, so that who has little to
        compute need not wait for who has much; the oldest has what nobody else wants. Long ones stay within their bound.
        `keeps_door`: a quarter is left for whoever is admitted in this step.
        """
        door = max(1, self.tokens_left // 4) if keeps_door else 0
        given = [0] * len(prompts)

        def give(index: int, most: int) -> None:
            remaining = min(prompts[index], self.chunk_max) - given[index]
            tokens = min(self.chunk(remaining, is_long=are_long[index]), max(0, most))
            self.take(tokens, is_long=are_long[index])
            given[index] += tokens

        give(0, -(-(self.tokens_left - door) // 2))
        for index in sorted(range(1, len(prompts)), key=lambda index: prompts[index]):
            give(index, self.tokens_left - door)
        give(0, self.tokens_left - door)
        return given

    def keep_for_short(self, tokens: int) -> None:
        """Long prompts leave so many of what is left, or half, to short ones that are tried after them."""
        if self.long_left is None:
            self.long_left = self.tokens_left - min(tokens, self.tokens_left // 2)

    def take(self, tokens: int, *, is_long: bool = False) -> None:
        law(0 <= tokens <= self.tokens_left, "%d tokens taken of %d", tokens, self.tokens_left)
        self.tokens_left -= tokens
        if is_long and self.long_left is not None:
            law(tokens <= self.long_left, "%d tokens taken of %d for long prompts", tokens, self.long_left)
            self.long_left -= tokens
