"""Our side: the Python engine as a library user has it, sampling included. Every measurement leaves the engine as it was.

Prompts with an equal beginning share their KV in the engine, so a conversation of a given length is opened at little
cost as often as one is needed; what is timed is only the turn that follows.
"""

import time
from collections.abc import Sequence

from sojourn import Engine
from sojourn.api.options import TurnKeywords
from sojourn.app.session import Session

SLACK = 64  # tokens that a turn may run on while others of its batch start


def options(max_tokens: int) -> TurnKeywords:
    """As the peer samples."""
    return {"max_tokens": max_tokens, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "ignore_eos": True}


class Ours:
    def __init__(self, model: str, *, sequences: int, pool_tokens: int) -> None:
        self._engine = Engine(
            model, threads=2, context=8192, pool_tokens=pool_tokens, max_running=sequences, chunk=512, seed=1
        )

    def _conversation(self, tokens: Sequence[int]) -> Session:
        """A session whose history is `tokens` and one sampled token in place of the last of them."""
        session = self._engine.open_session()
        session.turn(token_ids=tokens[:-1], **options(1)).wait()
        return session

    def prefill(self, tokens: Sequence[int]) -> float:
        """Seconds from the call to the first token of a prompt that the engine has not seen."""
        with self._engine.open_session() as session:
            begin = time.perf_counter()
            turn = session.turn(token_ids=tokens, **options(1))
            turn.wait()
            seconds = time.perf_counter() - begin
            if turn.usage.cached_tokens:
                raise RuntimeError(f"{turn.usage.cached_tokens} tokens of a new prompt were cached")
        return seconds

    def append(self, held: Sequence[int], tokens: Sequence[int]) -> float:
        """Seconds from the call to the first token of a turn of `tokens` in a conversation of len(held) tokens."""
        with self._conversation(held) as session:
            begin = time.perf_counter()
            turn = session.turn(token_ids=tokens, **options(1))
            turn.wait()
            seconds = time.perf_counter() - begin
            if turn.usage.cached_tokens < len(held) - 1:
                raise RuntimeError(f"only {turn.usage.cached_tokens} of {len(held)} tokens were cached")
        return seconds

    def decode(self, held: Sequence[Sequence[int]], steps: int) -> float:
        """Seconds for `steps` tokens in each of the conversations, all running at the same time."""
        sessions = [self._conversation(tokens) for tokens in held]
        turns = [session.turn(token_ids=held[0][:1], **options(steps + SLACK)) for session in sessions]
        iterators = [iter(turn) for turn in turns]
        for deltas in iterators:
            next(deltas)
        begin = time.perf_counter()
        for _ in range(steps):
            for deltas in iterators:
                next(deltas)
        seconds = time.perf_counter() - begin
        for session, turn in zip(sessions, turns, strict=True):
            turn.stop()
            turn.settle()
            session.close()
        return seconds

    def close(self) -> None:
        self._engine.close()
