"""What a plan cannot know: the token that the step before accepts last, and the drafts that may follow it.

Follows every sequence from its first work to its end, on the thread that runs the steps, in step order. Chooses nothing:
the plan says how many drafts at most, the target which of them stand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.errors import CorruptionError, law
from sojourn.core.ids import SeqId
from sojourn.core.step import Sample, Span, StepPlan, TokenArray, Work
from sojourn.spec.accept import accept
from sojourn.spec.protocol import DraftAsk, Drafter


@dataclass(slots=True, eq=False)
class _Tail:
    """The end of a sequence: `tokens[-1]` is the token of position `next_start`, the only one without KV.

    The tokens before it are those that a history planned meanwhile may lack; none without penalties.
    """

    next_start: int
    tokens: list[int]


class Resolver:
    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._tails: dict[SeqId, _Tail] = {}

    def resolve(self, plan: StepPlan) -> list[Work]:
        """The works as they run, in the plan's order; one without tokens has nothing to do."""
        drafter = self._drafter
        for seq in plan.ends:
            self._tails.pop(seq, None)
            drafter.end(seq)
        for work in plan.work:
            if work.begins is not None:
                drafter.begin(work.seq, work.begins.lineage, work.begins.tokens)
        works = [self._continued(work) if work.takes_previous else work for work in plan.work]
        drafter.observe(works)
        asks: list[DraftAsk] = []
        asking: list[int] = []
        for index, work in enumerate(works):
            num_max = min(work.drafts_max, work.end_max - work.start - 1)
            if num_max > 0:
                asks.append(DraftAsk(work.seq, num_max))
                asking.append(index)
        if asks:
            for index, ask, drafts in zip(asking, asks, drafter.propose(asks), strict=True):
                law(len(drafts) <= ask.num_max, "%d drafts, %d asked for", len(drafts), ask.num_max)
                if drafts:
                    work = works[index]
                    works[index] = replace(work, tokens=work.tokens + drafts, num_drafts=len(drafts))
        return works

    def accepted(
        self, works: Sequence[Work], samples: Sequence[tuple[Sample, ...]]
    ) -> tuple[tuple[tuple[Sample, ...], ...], tuple[Span, ...]]:
        """What stands of `samples`, and how far each of the resolved works came. The tails move on."""
        standing: list[tuple[Sample, ...]] = []
        spans: list[Span] = []
        for work, drawn in zip(works, samples, strict=True):
            num_drafts = work.num_drafts
            stands = accept(work.tokens[-num_drafts:], drawn) if num_drafts else drawn
            num_computed = len(work.tokens) - num_drafts + max(0, len(stands) - 1)
            standing.append(stands)
            spans.append(Span(work.start, num_computed, num_drafts))
            if stands:
                self._move_on(work, work.start + num_computed, [sample.token for sample in stands])
        return tuple(standing), tuple(spans)

    def draft_lens(self, works: Sequence[Work]) -> tuple[int, ...]:
        """How much of each sequence the drafter has KV of, once the step is accepted."""
        return self._drafter.kv_lens(works)

    def _move_on(self, work: Work, next_start: int, tokens: list[int]) -> None:
        self._drafter.extend(work.seq, tokens)
        tail = self._tails.get(work.seq)
        if tail is None:
            tail = self._tails[work.seq] = _Tail(next_start, tokens)
        elif work.history is None:
            tail.tokens = tokens[-1:]
        elif work.takes_previous:
            tail.tokens += tokens
        else:
            tail.tokens = tokens
        tail.next_start = next_start

    def _continued(self, work: Work) -> Work:
        """With the token that the last step accepted, where it stands."""
        tail = self._tails.get(work.seq)
        if tail is None:
            raise CorruptionError(f"row {work.seq} continues a step that sampled nothing")
        start = tail.next_start
        if start >= work.end_max:
            return Work(work.seq, start, ())
        law(start >= work.start, "row %d continues at %d, planned from %d", work.seq, start, work.start)
        history = work.history
        if history is not None:
            missing = start + 1 - len(history)
            law(0 < missing <= len(tail.tokens), "%d tokens of a history are missing", missing)
            tail.tokens = tail.tokens[-missing:]
            history = _joined(history, tail.tokens)
        return Work(  # not `replace`, which takes as long as all the rest
            work.seq,
            start,
            (tail.tokens[-1],),
            work.edits,
            work.sampling,
            history=history,
            num_prompt=work.num_prompt,
            takes_previous=True,
            drafts_max=work.drafts_max,
            end_max=work.end_max,
        )


def _joined(history: TokenArray, tokens: list[int]) -> TokenArray:
    return np.concatenate((history, np.array(tokens, dtype=np.int32)))
