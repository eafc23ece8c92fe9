"""From a step plan to the back end's arrays. Knows shapes, not reasons: it never allocates, frees or chooses a page.

Decoding asks for the same rows with the same parameters step after step, so the columns that depend on parameters only
are kept while the sampled rows keep theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np

from sojourn.backends.protocol import F32, I32, I64, U64, Batch, SamplingBatch
from sojourn.core.step import Pool, SamplingParams, Work

_NO_EDITS: I32 = np.empty((0, 4), dtype=np.int32)
_NO_TOKENS: I32 = np.empty(0, dtype=np.int32)
_SEED_MASK = (1 << 64) - 1
_DRAWN = -1  # in the column of known tokens


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """What depends on the rows' parameters only."""

    params: list[SamplingParams]  # one per row
    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    repetition_penalty: F32
    presence_penalty: F32
    frequency_penalty: F32
    seeds: U64
    bias_offsets: I64
    bias_ids: I32
    bias_values: F32
    no_history_offsets: I64
    no_history_prompt: I32
    none_known: I32
    num_logprobs: int


class InputBuilder:
    """Turns works into batches. Remembers nothing but the parameter columns of the last sampled rows."""

    def __init__(self) -> None:
        self._columns = _make_columns([])
        self._scoring: dict[int, SamplingParams] = {}  # of known rows, by how many log-probabilities they ask for

    def build(self, works: Sequence[Work]) -> Batch:
        tokens: list[int] = []
        seqs: list[int] = []
        starts: list[int] = []
        lengths: list[int] = []
        logit_rows: list[int] = []
        asking: list[Work] = []  # for a token or a log-probability
        has_edits = False
        for work in works:
            seqs.append(work.seq)
            starts.append(work.start)
            lengths.append(len(work.tokens))
            if work.known is not None:
                first = len(tokens) + work.known.first
                logit_rows.extend(range(first, first + len(work.known.tokens)))
            tokens += work.tokens
            has_edits = has_edits or bool(work.edits)
            if work.sampling is not None:
                logit_rows.extend(range(len(tokens) - 1 - work.num_drafts, len(tokens)))
            if work.sampling is not None or work.known is not None:
                asking.append(work)
        return Batch(
            tokens=np.array(tokens, dtype=np.int32),
            seqs=np.array(seqs, dtype=np.int32),
            starts=np.array(starts, dtype=np.int32),
            lengths=np.array(lengths, dtype=np.int32),
            table_edits=_edit_rows(works) if has_edits else _NO_EDITS,
            logit_rows=np.array(logit_rows, dtype=np.int32),
            sampling=self._sampling(asking) if asking else None,
        )

    def _sampling(self, asking: Sequence[Work]) -> SamplingBatch:
        params: list[SamplingParams] = []
        positions: list[int] = []
        known: list[int] = []
        has_history = has_known = False
        for work in asking:
            if (rows := work.known) is not None:
                has_known = True
                params += [self._scoring_params(rows.num_logprobs)] * len(rows.tokens)
                first = work.start + rows.first + 1
                positions.extend(range(first, first + len(rows.tokens)))
                known += rows.tokens
            if work.sampling is None:
                continue
            end = work.start + len(work.tokens)  # the last row draws the token of this position
            for position in range(end - work.num_drafts, end + 1):
                params.append(work.sampling)
                positions.append(position)
                known.append(_DRAWN)
            has_history = has_history or work.history is not None
        columns = self._columns
        if not _same_objects(params, columns.params):
            columns = self._columns = _make_columns(params)
        offsets, history, prompts = columns.no_history_offsets, _NO_TOKENS, columns.no_history_prompt
        if has_history:
            offsets, history, prompts = _history(asking)
        return SamplingBatch(
            temperature=columns.temperature,
            top_k=columns.top_k,
            top_p=columns.top_p,
            min_p=columns.min_p,
            repetition_penalty=columns.repetition_penalty,
            presence_penalty=columns.presence_penalty,
            frequency_penalty=columns.frequency_penalty,
            seeds=columns.seeds,
            positions=np.array(positions, dtype=np.int64),
            bias_offsets=columns.bias_offsets,
            bias_ids=columns.bias_ids,
            bias_values=columns.bias_values,
            history_offsets=offsets,
            history=history,
            history_prompt=prompts,
            known=np.array(known, dtype=np.int32) if has_known else columns.none_known,
            num_logprobs=columns.num_logprobs,
        )

    def _scoring_params(self, num_logprobs: int) -> SamplingParams:
        """The same object each time, so that columns are found again."""
        return self._scoring.setdefault(num_logprobs, SamplingParams(num_logprobs=num_logprobs))


def _same_objects(params: list[SamplingParams], known: list[SamplingParams]) -> bool:
    return len(params) == len(known) and all(map(is_, params, known))


def _make_columns(params: list[SamplingParams]) -> _Columns:
    def floats(values: list[float]) -> F32:
        return np.array(values, dtype=np.float32)

    biases = [p.logit_bias for p in params]
    num_logprobs = [-1 if p.num_logprobs is None else p.num_logprobs for p in params]
    return _Columns(
        params=params,
        temperature=floats([p.temperature for p in params]),
        top_k=np.array([p.top_k for p in params], dtype=np.int32),
        top_p=floats([p.top_p for p in params]),
        min_p=floats([p.min_p for p in params]),
        repetition_penalty=floats([p.repetition_penalty for p in params]),
        presence_penalty=floats([p.presence_penalty for p in params]),
        frequency_penalty=floats([p.frequency_penalty for p in params]),
        seeds=np.array([p.seed & _SEED_MASK for p in params], dtype=np.uint64),
        bias_offsets=_offsets([len(bias) for bias in biases]),
        bias_ids=np.array([token for bias in biases for token, _ in bias], dtype=np.int32),
        bias_values=floats([value for bias in biases for _, value in bias]),
        no_history_offsets=np.zeros(len(params) + 1, dtype=np.int64),
        no_history_prompt=np.zeros(len(params), dtype=np.int32),
        none_known=np.full(len(params), _DRAWN, dtype=np.int32),
        num_logprobs=max(num_logprobs, default=-1),
    )


def _offsets(sizes: list[int]) -> I64:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _history(works: Sequence[Work]) -> tuple[I64, I32, I32]:
    """Per sampled row the tokens before the one it draws: the work's history, then the drafts up to the row."""
    parts: list[I32] = []
    prompts: list[int] = []
    for work in works:
        if work.known is not None:
            parts += [_NO_TOKENS] * len(work.known.tokens)
            prompts += [0] * len(work.known.tokens)
        if work.sampling is None:
            continue
        for drafts in range(work.num_drafts + 1):
            if work.history is None:
                parts.append(_NO_TOKENS)
            else:
                first = len(work.tokens) - work.num_drafts
                accepted = np.array(work.tokens[first : first + drafts], dtype=np.int32)
                parts.append(np.concatenate((work.history, accepted)) if drafts else work.history)
            prompts.append(work.num_prompt if work.history is not None else 0)
    return _offsets([len(part) for part in parts]), np.concatenate(parts), np.array(prompts, dtype=np.int32)


def _edit_rows(works: Sequence[Work]) -> I32:
    """Rows (seq, pool, index, page), in the works' order."""
    parts: list[I32] = []
    for work in works:
        for edit in work.edits:
            if edit.pool is Pool.DRAFT:
                continue  # the drafter's
            rows = np.empty((len(edit.pages), 4), dtype=np.int32)
            rows[:, 0] = work.seq
            rows[:, 1] = edit.pool
            rows[:, 2] = np.arange(edit.first, edit.first + len(edit.pages), dtype=np.int32)
            rows[:, 3] = edit.pages
            parts.append(rows)
    return parts[0] if len(parts) == 1 else np.concatenate([_NO_EDITS, *parts])
