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

    def decode(self, tokens: int) -> None:
        """Take a decode's tokens (1, or 1 + drafts). They always fit: the budget covers every batch place."""
        law(tokens <= self.tokens_left, "%d decode tokens, %d left in the step", tokens, self.tokens_left)
        self.tokens_left -= tokens

    def chunk(self, remaining: int) -> int:
        """How many of a prompt's `remaining` tokens this step may run: 0 when the step is full. Takes nothing."""
        return min(remaining, self.chunk_max, self.tokens_left)

    def share_out(self, prompts: Sequence[int], *, keeps_door: bool) -> list[int]:
        """Take tokens for running prompts with so much left to compute, oldest first: how many each may run.

        Half is the oldest's, so that it is not starved; then the shortest are served first, so that who has little to
        compute need not wait for who has much; the oldest has what nobody else wants. `keeps_door`: a quarter is left for
        whoever is admitted in this step.
        """
        door = max(1, self.tokens_left // 4) if keeps_door else 0
        left = max(0, self.tokens_left - door)
        given = [0] * len(prompts)
        given[0] = min(prompts[0], self.chunk_max, -(-left // 2))
        left -= given[0]
        for index in sorted(range(1, len(prompts)), key=lambda index: prompts[index]):
            given[index] = min(prompts[index], self.chunk_max, left)
            left -= given[index]
        given[0] += min(left, min(prompts[0], self.chunk_max) - given[0])
        self.tokens_left -= sum(given)
        return given

    def take(self, tokens: int) -> None:
        law(0 < tokens <= self.tokens_left, "%d tokens taken of %d", tokens, self.tokens_left)
        self.tokens_left -= tokens
