"""One forward step, decided: all that the scheduler and the runner share. Immutable.

There is no prefill phase and no decode phase. A `Work` gives one sequence some tokens whose KV is not computed yet:
a chunk of a prompt, the one token of a decode, or a token and its drafts to verify. The shape is the same.

    positions     0 ........ start .................. start + len(tokens)
                  KV present | KV computed by this step |
                                        the last `1 + num_drafts` rows are sampled when `sampling` is set

The sample drawn from the row at position p is the token of position p + 1; its random draw is a pure function of
(seed, p + 1).

A work planned while an earlier step of its sequence is in flight `takes_previous`: its first token is the last one which
that step accepts, and `start` the least it can be. The runner resolves it, and adds up to `drafts_max` drafts; positions
never reach `end_max`.

    planned       0 ...... committed ...... start (least) ............. end_max
                           | steps in flight, 1 to 1 + drafts_max each |
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sojourn.core.ids import SeqId, StepId
from sojourn.core.record import record

TokenArray = NDArray[np.int32]
PageArray = NDArray[np.int32]  # PageIds


class Pool(IntEnum):
    """A KV pool: the layers with full attention, those with a sliding window, or a draft model's KV."""

    FULL = 0
    SWA = 1
    DRAFT = 2


MODEL_POOLS = (Pool.FULL, Pool.SWA)  # the page tables that every back end keeps


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch a filter off.

    Order as in the field: logit bias, repetition, presence and frequency penalties, temperature, top-k, top-p, min-p.
    Log-probabilities are those of the model's own distribution, before temperature and filters.
    `num_logprobs` None asks for none, 0 for the sampled token's only, k > 0 for the k best too.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    num_logprobs: int | None = None

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@record(eq=False)
class TableEdit:
    """Pages `[first, first + len(pages))` of a sequence's page table in one pool become `pages` (a copy of its own)."""

    pool: Pool
    first: int
    pages: PageArray


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Rows whose token is known instead of drawn, to learn how likely the model finds it: row `first + i` of the work
    (not the position) is given `tokens[i]`, with its log-probability and those of the `num_logprobs` best.
    """

    first: int
    tokens: tuple[int, ...]
    num_logprobs: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class BegunSequence:
    """A row of the core's tables is a new sequence's from this work on. `tokens` are all it knows now (a view)."""

    lineage: Hashable  # sequences of one lineage extend each other; None: it stands alone
    tokens: TokenArray
    draft_len: int = 0  # of those, the draft model's pages have the KV


@record(eq=False)
class Work:
    """What one sequence does in one step. A sequence occurs at most once in a step.

    `history` is given only with penalties: every token before the first sampled one (int32, prompt and output), of
    which the first `num_prompt` are the prompt (presence and frequency count output only, repetition counts both). Of a work
    that takes the previous one's last token it has those known when it was planned.
    `known` rows come before the sampled ones and are none of them.

    A plan has no drafts yet (`num_drafts` 0), what the runner made of it no `drafts_max`. With either or with
    `takes_previous`, `end_max` is set; a work with nothing left below it does nothing.
    """

    seq: SeqId
    start: int
    tokens: tuple[int, ...]
    edits: tuple[TableEdit, ...] = ()
    sampling: SamplingParams | None = None
    num_drafts: int = 0
    history: TokenArray | None = None
    num_prompt: int = 0
    known: KnownRows | None = None
    takes_previous: bool = False  # then `tokens` is empty: the runner knows it, or will
    drafts_max: int = 0
    end_max: int = 0
    begins: BegunSequence | None = None  # on the first work of a sequence


@record()
class StepPlan:
    """`ends`: sequences that run no more; their rows may begin another one in this very step."""

    step: StepId
    work: tuple[Work, ...]
    ends: tuple[SeqId, ...] = ()


@record()
class Sample:
    """One sampled token; `top` holds (token id, log-probability), best first, when asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@record()
class Span:
    """What one work came to. Its KV stands for `[start, start + num_computed)`: 0 of a work that had nothing to do."""

    start: int
    num_computed: int  # rejected drafts are not counted
    num_drafted: int = 0

    @property
    def end(self) -> int:
        return self.start + self.num_computed


@record()
class StepResult:
    """Per work of the plan, in its order: the samples that stand (none where nothing was sampled), one per draft that
    was accepted and one more.

    `known` likewise, of the rows whose token was known; empty when no work of the step had any. `spans` is empty when
    every work did what was planned, no more and no less.
    """

    step: StepId
    samples: tuple[tuple[Sample, ...], ...]
    known: tuple[tuple[Sample, ...], ...] = ()
    spans: tuple[Span, ...] = ()
    num_rows: int = 0  # positions computed, drafts included
    seconds: float = 0.0  # the device's time, and that of the drafts
    draft_lens: tuple[int, ...] = ()  # per work, the tokens that stand whose KV the draft model has; () without one
