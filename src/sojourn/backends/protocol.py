"""What the runner asks of a back end: one call per step over a ragged batch of plain arrays.

A back end owns weights, KV memory and page tables. It never allocates, frees or chooses a page, and knows no requests.
"""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.core.record import record

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
KvDtype = Literal["f16", "f32"]  # of cached keys and values


@record(eq=False)
class SamplingBatch:
    """Parameters of the L sampled rows, column by column (see core.step.SamplingParams).

    A row with a `known` token is given that one and draws none; only `num_logprobs` means anything to it.

    `positions[i]` is the position of the token that row i draws. `bias_offsets` and `history_offsets` (L + 1 entries)
    cut `bias_ids` / `bias_values` and `history` into the rows' parts; a row without penalties has an empty history.
    """

    temperature: F32  # [L]
    top_k: I32  # [L]
    top_p: F32  # [L]
    min_p: F32  # [L]
    repetition_penalty: F32  # [L]
    presence_penalty: F32  # [L]
    frequency_penalty: F32  # [L]
    seeds: U64  # [L]
    positions: I64  # [L]
    bias_offsets: I64  # [L + 1]
    bias_ids: I32
    bias_values: F32
    history_offsets: I64  # [L + 1]
    history: I32
    history_prompt: I32  # [L] how many of the row's history are prompt
    known: I32  # [L] a token id, or -1: one is drawn
    num_logprobs: int  # -1: none; 0: the sampled token's; k: the k best too, for every row


@record(eq=False)
class Batch:
    """B sequences, M rows in all; sequence i has rows for positions `[starts[i], starts[i] + lengths[i])`, in order.

    `table_edits` rows are (seq, pool, index, page), applied in order before anything runs. Each is the last entry of its
    table until the next: what stood past it is forgotten, so an entry that changes comes with all that follow it.
    `logit_rows` are indices into the M rows, ascending.
    """

    tokens: I32  # [M]
    seqs: I32  # [B]
    starts: I32  # [B]
    lengths: I32  # [B], each at least 1
    table_edits: I32  # [E, 4]
    logit_rows: I32  # [L]
    sampling: SamplingBatch | None  # None: no draw, only logits
    want_logits: bool = False


@record(eq=False)
class BatchOutput:
    tokens: I32  # [L] sampled tokens; empty without sampling
    logprobs: F32  # [L], or [0] when not asked for
    top_ids: I32  # [L, k]
    top_logprobs: F32  # [L, k]
    logits: F32 | None  # [L, vocab_size], only with want_logits


class Backend(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def seqs_max(self) -> int: ...

    def step(self, batch: Batch) -> BatchOutput:
        """Run one step; blocks the calling thread and releases the GIL. Bits do not depend on what else is in the batch."""
        ...

    def close(self) -> None:
        """Give back memory and threads. Safe to call twice."""
        ...
