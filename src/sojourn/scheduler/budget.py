"""How many tokens each request may run in one step: running decodes first, chunks of prompts with the rest.

Pure over integers. Results do not depend on it (the core is batch-invariant); latency and throughput do.
"""

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

    def take(self, tokens: int) -> None:
        law(0 < tokens <= self.tokens_left, "%d tokens taken of %d", tokens, self.tokens_left)
        self.tokens_left -= tokens
