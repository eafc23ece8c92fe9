"""A draft model over the fake back end: wrong now and then by a seed, and watched for what it has read."""

import random
from collections.abc import Hashable, Sequence

from sojourn.backends.protocol import Batch, BatchOutput
from sojourn.cache.drafts import DraftPool, draft_book
from sojourn.core.ids import SeqId
from sojourn.core.step import TokenArray, Work
from sojourn.pages.sizing import NUM_RESERVED
from sojourn.spec.draft_model import DraftModel
from sojourn.spec.protocol import DraftAsk
from tests.support.fake_backend import VOCAB_SIZE, FakeBackend, chain_next, draw


class DoubtfulBackend(FakeBackend):
    """Says another token than the fake target would at some positions. Which ones depends on the seed alone."""

    seed, right = "", 1.0

    def step(self, batch: Batch) -> BatchOutput:
        output = super().step(batch)
        if batch.sampling is not None:
            positions = batch.sampling.positions.tolist()
            output.tokens[:] = [self.said(*said) for said in zip(output.tokens.tolist(), positions, strict=True)]
        return output

    def said(self, token: int, position: int) -> int:
        """What it says at `position` where the target says `token`."""
        is_right = random.Random(f"{self.seed} {position}").random() < self.right
        return token if is_right else (token + 1) % VOCAB_SIZE


class WatchedDraftModel(DraftModel):
    """Checks that its first guess follows all that it was told of: the KV it has read is of the tokens that stand."""

    def __init__(self, *, page_size: int, total: int, window: int, seqs_max: int, context: int) -> None:
        self.inner = DoubtfulBackend(
            page_size=page_size,
            totals=(total,) * (2 if window else 1),
            window=window,
            seqs_max=seqs_max,
            context=context,
        )
        super().__init__(self.inner, page_size=page_size, context_length=context, num_pools=2 if window else 1)
        self._told: dict[SeqId, tuple[int, int]] = {}  # length and hash
        self.resumes = 0  # sequences that began with KV of an earlier run
        self.catch_ups = 0  # those that began with less than the target found

    def begin(self, seq: SeqId, lineage: Hashable, tokens: TokenArray) -> None:
        super().begin(seq, lineage, tokens)
        self._told[seq] = (0, 0)
        self._tell(seq, tokens.tolist())

    def observe(self, works: Sequence[Work]) -> None:
        for work in works:
            if work.begins is not None:
                self.resumes += work.begins.draft_len > 0
                self.catch_ups += work.begins.draft_len < work.start
        super().observe(works)

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        super().extend(seq, tokens)
        self._tell(seq, tokens)

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[tuple[int, ...]]:
        proposed = super().propose(asks)
        for ask, guesses in zip(asks, proposed, strict=True):
            length, chain = self._told[ask.seq]
            right = self.inner.said(draw(chain, 0.0, 0, length), length)
            assert guesses[:1] in ((), (right,)), f"row {ask.seq} guesses {guesses} after {length} tokens"
        return proposed

    def end(self, seq: SeqId) -> None:
        super().end(seq)
        self._told.pop(seq, None)

    def _tell(self, seq: SeqId, tokens: Sequence[int]) -> None:
        length, chain = self._told[seq]
        for token in tokens:
            chain = chain_next(chain, token, length)
            length += 1
        self._told[seq] = length, chain


def draft_pool(page_size: int, pages: int) -> DraftPool:
    """Of `pages` usable ones; 0: there is no draft model."""
    return DraftPool(draft_book(page_size, pages + NUM_RESERVED) if pages else None)
