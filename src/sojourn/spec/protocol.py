"""What the runner asks of a drafter: guesses of what each sequence says next. Knows no pages, plans no steps.

    begin(seq) ── extend(accepted) ── propose ── extend ── propose ... ── end(seq)

Drafts are a favour: the target decides every token, so a drafter may be wrong, late or silent, and the output is the
same. It is deterministic, lives on the thread that runs the steps, and never raises for want of anything.
"""

from collections.abc import Hashable, Sequence
from typing import Protocol

from sojourn.core.ids import SeqId
from sojourn.core.record import record
from sojourn.core.step import TokenArray, Work


@record()
class DraftAsk:
    """Guess at most `num_max` tokens that follow what was told of `seq`."""

    seq: SeqId
    num_max: int


class Drafter(Protocol):
    """Per step: `end`s, `begin`s, one `observe`, at most one `propose`; after the step `extend`s.

    A sequence that was told of tokens past its stop ends in the same or the next step; its lineage, when it begins
    again, comes with what really stands.
    """

    @property
    def name(self) -> str: ...

    def begin(self, seq: SeqId, lineage: Hashable, tokens: TokenArray) -> None:
        """Row `seq` is a new sequence, of which `tokens` are known; the view is good for this call only."""
        ...

    def observe(self, works: Sequence[Work]) -> None:
        """The works of the step about to run, without drafts: what the target computes now, and table edits."""
        ...

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[tuple[int, ...]]:
        """Per ask, what may follow: fewer tokens or none where there is no good guess."""
        ...

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        """`tokens` follow what was known of `seq`: they stand."""
        ...

    def end(self, seq: SeqId) -> None:
        """The sequence runs no more."""
        ...

    def kv_lens(self, works: Sequence[Work]) -> tuple[int, ...]:
        """Per work, the tokens that stand whose KV it keeps in `Pool.DRAFT`; () of a drafter that keeps none."""
        ...


class NoDrafter:
    """Never has a guess."""

    name = "off"

    def begin(self, seq: SeqId, lineage: Hashable, tokens: TokenArray) -> None:
        pass

    def observe(self, works: Sequence[Work]) -> None:
        pass

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[tuple[int, ...]]:
        return [()] * len(asks)

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        pass

    def end(self, seq: SeqId) -> None:
        pass

    def kv_lens(self, works: Sequence[Work]) -> tuple[int, ...]:
        return ()
