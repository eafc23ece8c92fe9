"""Drafts from what a sequence has said before: where its last tokens stood earlier, what followed them.

Owns an index of tokens per running sequence, and keeps it between the requests of one lineage, the least recently used
given up first. Compares tokens, never lengths, so a turn that was undone or rewound in between needs no word here. Knows no
model.

    begin    out of the kept ones ─▶ cut to what is in common, extended        one lineage, one index: taken, not shared
    end      back to the kept ones; without a lineage it is dropped
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sojourn.core.ids import SeqId
from sojourn.core.step import TokenArray, Work
from sojourn.spec.protocol import DraftAsk
from sojourn.spec.token_index import TokenIndex

RUN = 2  # tokens: the shortest that count as having been said before
MORE = 3  # drafts for each token that was the same beyond those
LOOKS = 8  # places compared; each costs a walk over what is the same
LONGEST = 32  # tokens: what is the same for so long is a copy, and no other place is looked at
KEPT_TOKENS = 1 << 18  # over all idle lineages; a token takes about a hundred bytes
LINEAGE_TOKENS = 16  # that a lineage counts as besides its own: what it takes however short it is


@dataclass(slots=True, eq=False)
class _Begun:
    lineage: Hashable
    index: TokenIndex


class NgramDrafter:
    """One token after the shortest match, which is mostly chance, and more the longer it was: a copy goes on as a copy."""

    name = "ngram"

    def __init__(
        self, *, run: int = RUN, looks: int = LOOKS, longest: int = LONGEST, kept_tokens_max: int = KEPT_TOKENS
    ) -> None:
        self._run = run
        self._looks = looks
        self._longest = longest
        self._kept_tokens_max = kept_tokens_max
        self._begun: dict[SeqId, _Begun] = {}
        self._kept: OrderedDict[Hashable, TokenIndex] = OrderedDict()  # least recently used first
        self._kept_tokens = 0

    @property
    def kept_tokens(self) -> int:
        """Of the lineages that run nowhere, with `LINEAGE_TOKENS` for each."""
        return self._kept_tokens

    def begin(self, seq: SeqId, lineage: Hashable, tokens: TokenArray) -> None:
        self.end(seq)
        index = self._kept.pop(lineage, None)
        if index is None:
            index = TokenIndex(run=self._run, looks=self._looks, longest=self._longest)
        else:
            self._kept_tokens -= _cost(index)
        index.become(tokens)
        self._begun[seq] = _Begun(lineage, index)

    def observe(self, works: Sequence[Work]) -> None:
        """What the target computes is of no interest."""

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        begun = self._begun.get(seq)
        if begun is not None:
            begun.index.extend(tokens)

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[tuple[int, ...]]:
        return [self._propose(ask) for ask in asks]

    def kv_lens(self, works: Sequence[Work]) -> tuple[int, ...]:
        return ()

    def _propose(self, ask: DraftAsk) -> tuple[int, ...]:
        begun = self._begun.get(ask.seq)
        if begun is None or ask.num_max < 1:
            return ()
        place, length = begun.index.longest_match()
        if length == 0:
            return ()
        return begun.index.after(place, min(ask.num_max, 1 + MORE * (length - self._run)))

    def end(self, seq: SeqId) -> None:
        begun = self._begun.pop(seq, None)
        if begun is None or begun.lineage is None:
            return
        older = self._kept.pop(begun.lineage, None)  # another sequence of the lineage has ended meanwhile
        self._kept_tokens += _cost(begun.index) - (0 if older is None else _cost(older))
        self._kept[begun.lineage] = begun.index
        while self._kept_tokens > self._kept_tokens_max:
            _, dropped = self._kept.popitem(last=False)
            self._kept_tokens -= _cost(dropped)


def _cost(index: TokenIndex) -> int:
    return LINEAGE_TOKENS + len(index)
