"""A drafter that is sometimes right, by a seed, and that notices when it is told nonsense."""

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sojourn.core.ids import SeqId
from sojourn.core.step import SamplingParams, TokenArray, Work
from sojourn.spec.protocol import DraftAsk
from tests.support.fake_backend import VOCAB_SIZE, chain_next, draw


@dataclass
class _Told:
    """A sequence as the drafter was told of it."""

    length: int = 0
    chain: int = 0
    sampling: SamplingParams | None = None

    def take(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.chain = chain_next(self.chain, token, self.length)
            self.length += 1


class ScriptedDrafter:
    """Knows how the fake back end draws. Each draft is right with a chance of `right`; how many it has is chance too."""

    name = "scripted"

    def __init__(self, seed: str, right: float) -> None:
        self._rng = random.Random(seed)
        self._right = right
        self._told: dict[SeqId, _Told] = {}
        self.begun = self.ended = 0

    def begin(self, seq: SeqId, lineage: Hashable, tokens: TokenArray) -> None:
        assert seq not in self._told, f"row {seq} begins while another runs on it"
        told = self._told[seq] = _Told()
        told.take(tokens.tolist())
        self.begun += 1

    def observe(self, works: Sequence[Work]) -> None:
        for work in works:
            told = self._told[work.seq]
            assert work.num_drafts == 0
            assert work.start + len(work.tokens) <= told.length, "runs a token that nobody told of"
            told.sampling = work.sampling

    def propose(self, asks: Sequence[DraftAsk]) -> list[tuple[int, ...]]:
        return [self._drafts(self._told[ask.seq], ask.num_max) for ask in asks]

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        assert tokens
        self._told[seq].take(tokens)

    def end(self, seq: SeqId) -> None:
        del self._told[seq]
        self.ended += 1

    def kv_lens(self, works: Sequence[Work]) -> tuple[int, ...]:
        return ()

    def _drafts(self, told: _Told, num_max: int) -> tuple[int, ...]:
        assert num_max > 0
        assert told.sampling is not None, "nothing is sampled of it in this step"
        chain, drafts = told.chain, []
        for position in range(told.length, told.length + self._rng.randint(0, num_max)):
            token = draw(chain, told.sampling.temperature, told.sampling.seed, position)
            if self._rng.random() >= self._right:
                token = self._rng.randrange(VOCAB_SIZE)
            drafts.append(token)
            chain = chain_next(chain, token, position)
        return tuple(drafts)
