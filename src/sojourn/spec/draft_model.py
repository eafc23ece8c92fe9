"""Drafts from a second, smaller model with the same vocabulary. Owns how far that model has read each sequence.

    tokens     0 ............ kv_len ............ known            | guesses of the last propose |
               KV is computed        | pending                     |
               of tokens that stand    read by chunks, the last    KV of all but the last guess is computed, and stands
                                       ones as the guessing begins as far as the target said the same

It follows the target: a chunk of a prompt is read beside the target's, in the same step. Where the target found a prefix
whose KV this model has not, it is silent until that is read, a part with each step. That begins only once the answer is half
as long as the prefix: most answers are over before guesses could bring in what reading a long history costs. A
sequence nobody asks about costs nothing beyond its prompt.

A rejected guess leaves wrong KV at its position and behind. Nothing undoes that, for nothing reads it: what is run next
begins at `kv_len`, never past the first wrong position, and a row attends only to positions before it, each written anew
by this run or by an earlier row of it.

Pages come with the plans, as edits of `Pool.DRAFT`: their number bounds how far it may read and guess. One page is the
page of that number in each of the model's pools, so its sliding layers keep the whole length: more memory than a window
needs, and no rule about what is still live. Never allocates, and knows no pages but by their numbers.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sojourn.backends.protocol import I32, Backend, Batch, SamplingBatch
from sojourn.core.ids import SeqId
from sojourn.core.step import MODEL_POOLS, Pool, TokenArray, Work
from sojourn.spec.protocol import DraftAsk

CATCH_UP = 64  # tokens read in one step though the target computes fewer; what is left to read when guessing begins
EARNED = 3  # tokens that may be left to read for each that was said, when reading begins

_NO_EDITS: I32 = np.empty((0, 4), dtype=np.int32)
_NO_ROWS: I32 = np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class _Reading:
    """One sequence. `kv_len + len(pending)` tokens are known, and at least one of them is pending."""

    kv_len: int
    pending: list[int]
    num_places: int = 0  # of its pages
    num_said: int = 0  # since it began
    ahead: list[int] = field(default_factory=list)  # tokens whose KV lies at `kv_len` and behind, right or wrong
    edits: list[I32] = field(default_factory=list)  # of its page tables, to go with its next run

    @property
    def num_known(self) -> int:
        return self.kv_len + len(self.pending)

    def read(self, count: int) -> None:
        """The KV of the next `count` pending tokens is computed."""
        del self.pending[:count]
        self.kv_len += count


@dataclass(frozen=True, slots=True)
class _Run:
    seq: SeqId
    start: int
    tokens: Sequence[int]


class DraftModel:
    """A Drafter that guesses what another model would say, greedily."""

    name = "model"

    def __init__(self, backend: Backend, *, page_size: int, context_length: int, num_pools: int) -> None:
        """`context_length` of the draft model, past which it is silent; `num_pools`: those its layers keep KV in."""
        self._backend = backend
        self._page_size = page_size
        self._context_length = context_length
        self._pages_max = -(-context_length // page_size)
        self._pools: tuple[Pool, ...] = MODEL_POOLS[:num_pools]
        self._readings: dict[SeqId, _Reading] = {}

    def begin(self, seq: SeqId, lineage: Hashable, tokens: TokenArray) -> None:
        """`observe` is told more of the same sequence: how much of its KV there is."""
        self.end(seq)

    def observe(self, works: Sequence[Work]) -> None:
        """Take the pages, and read what the target reads."""
        runs: list[_Run] = []
        for work in works:
            if work.begins is not None:
                kv_len = min(work.begins.draft_len, len(work.begins.tokens) - 1)
                self._readings[work.seq] = _Reading(kv_len, work.begins.tokens[kv_len:].tolist())
            reading = self._readings.get(work.seq)
            if reading is None:
                continue
            self._take_pages(reading, work)
            count = self._to_read(reading, work)
            if count > 0:
                runs.append(_Run(work.seq, reading.kv_len, reading.pending[:count]))
                reading.read(count)
        if runs:
            self._step(runs, is_sampled=False)

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[tuple[int, ...]]:
        drafts: dict[SeqId, list[int]] = {}
        lengths: dict[SeqId, int] = {}
        for ask in asks:
            reading = self._readings.get(ask.seq)
            if reading is not None and len(reading.pending) <= CATCH_UP:
                # A guess needs a place for the one before it: the first needs none but those of what is known.
                length = min(ask.num_max, reading.num_places - reading.num_known + 1)
                if length > 0:
                    drafts[ask.seq], lengths[ask.seq] = [], length
        runs = [_Run(seq, self._readings[seq].kv_len, self._readings[seq].pending) for seq in drafts]
        while runs:
            for run, token in zip(runs, self._step(runs, is_sampled=True), strict=True):
                drafts[run.seq].append(token)
            runs = [
                _Run(run.seq, run.start + len(run.tokens), drafts[run.seq][-1:])
                for run in runs
                if len(drafts[run.seq]) < lengths[run.seq]
            ]
        for seq, guesses in drafts.items():
            reading = self._readings[seq]
            reading.ahead = reading.pending + guesses[:-1]
        return [tuple(drafts.get(ask.seq, ())) for ask in asks]

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        """What was guessed and stands is read already. The last token stays pending, to be run for what follows it."""
        reading = self._readings.get(seq)
        if reading is None:
            return
        reading.pending += tokens
        reading.num_said += len(tokens)
        right = 0
        for ahead, token in zip(reading.ahead, reading.pending[:-1], strict=False):
            if ahead != token:
                break
            right += 1
        reading.read(right)
        reading.ahead = []

    def end(self, seq: SeqId) -> None:
        self._readings.pop(seq, None)

    def kv_lens(self, works: Sequence[Work]) -> tuple[int, ...]:
        readings = self._readings
        return tuple(readings[work.seq].kv_len if work.seq in readings else 0 for work in works)

    # -- inside

    def _take_pages(self, reading: _Reading, work: Work) -> None:
        for edit in work.edits:
            if edit.pool is not Pool.DRAFT:
                continue
            pages = edit.pages[: max(0, self._pages_max - edit.first)]
            places = (edit.first + len(pages)) * self._page_size
            reading.num_places = min(places, self._context_length)
            for pool in self._pools:
                rows = np.empty((len(pages), 4), dtype=np.int32)
                rows[:, 0] = work.seq
                rows[:, 1] = pool
                rows[:, 2] = np.arange(edit.first, edit.first + len(pages), dtype=np.int32)
                rows[:, 3] = pages
                reading.edits.append(rows)

    def _to_read(self, reading: _Reading, work: Work) -> int:
        """Tokens to read beside this work: with a chunk of a prompt, or because guesses are wanted and it is behind."""
        behind = len(reading.pending) - 1
        if len(work.tokens) > 1:
            is_wanted = work.start - reading.kv_len <= CATCH_UP  # else it would be behind afterwards all the same
        else:
            is_wanted = work.drafts_max > 0 and CATCH_UP <= behind <= max(CATCH_UP, EARNED * reading.num_said)
        if not is_wanted:
            return 0
        return min(behind, max(len(work.tokens), CATCH_UP), reading.num_places - reading.kv_len)

    def _step(self, runs: Sequence[_Run], *, is_sampled: bool) -> list[int]:
        """Run them together; the most likely token after each when it is `is_sampled`."""
        edits = [rows for run in runs for rows in self._taken_edits(run.seq)]
        lengths = np.array([len(run.tokens) for run in runs], dtype=np.int32)
        starts = np.array([run.start for run in runs], dtype=np.int32)
        output = self._backend.step(
            Batch(
                tokens=np.array([token for run in runs for token in run.tokens], dtype=np.int32),
                seqs=np.array([run.seq for run in runs], dtype=np.int32),
                starts=starts,
                lengths=lengths,
                table_edits=np.concatenate(edits) if edits else _NO_EDITS,
                logit_rows=np.cumsum(lengths, dtype=np.int32) - 1 if is_sampled else _NO_ROWS,
                sampling=_greedy(starts + lengths) if is_sampled else None,
            )
        )
        tokens: list[int] = output.tokens.tolist()
        return tokens

    def _taken_edits(self, seq: SeqId) -> list[I32]:
        reading = self._readings[seq]
        edits, reading.edits = reading.edits, []
        return edits


def _greedy(positions: I32) -> SamplingBatch:
    """The most likely token for each of `positions`."""
    count = len(positions)
    zeros, ones = np.zeros(count, dtype=np.float32), np.ones(count, dtype=np.float32)
    offsets = np.zeros(count + 1, dtype=np.int64)
    return SamplingBatch(
        temperature=zeros,
        top_k=np.zeros(count, dtype=np.int32),
        top_p=ones,
        min_p=zeros,
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
        seeds=np.zeros(count, dtype=np.uint64),
        positions=positions.astype(np.int64),
        bias_offsets=offsets,
        bias_ids=_NO_ROWS,
        bias_values=np.empty(0, dtype=np.float32),
        history_offsets=offsets,
        history=_NO_ROWS,
        history_prompt=np.zeros(count, dtype=np.int32),
        known=np.full(count, -1, dtype=np.int32),
        num_logprobs=-1,
    )
