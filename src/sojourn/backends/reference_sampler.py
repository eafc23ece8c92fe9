"""Sampling, written to be read: the specification of the native sampler. One row at a time, float64, numpy only.

    logits -> logit bias -> repetition -> presence, frequency -> temperature -> top-k -> top-p -> min-p -> draw

The draw is the inverse CDF in token-id order at one uniform number, a pure function of (seed, position): the first
double of Philox4x64-10 with key `seed` and counter `position` as numpy steps it. Ties go to the lower token id.
"""

import numpy as np
from numpy.typing import NDArray

from sojourn.backends.protocol import F32, I32, SamplingBatch

F64 = NDArray[np.float64]


def uniform(seed: int, position: int) -> float:
    """The one random number in [0, 1) of the token at `position`."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


def best_first(logits: F64) -> NDArray[np.int64]:
    """Token ids, highest logit first; equal logits in id order."""
    return np.argsort(-logits, kind="stable")


def softmax(logits: F64) -> F64:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def log_softmax(logits: F32) -> F64:
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def penalised(logits: F32, sampling: SamplingBatch, row: int) -> F64:
    """The row's logits after logit bias and the three penalties."""
    result = logits.astype(np.float64)
    bias = slice(sampling.bias_offsets[row], sampling.bias_offsets[row + 1])
    np.add.at(result, sampling.bias_ids[bias], sampling.bias_values[bias])
    history = sampling.history[sampling.history_offsets[row] : sampling.history_offsets[row + 1]]
    if history.size == 0:
        return result
    seen = np.unique(history)
    repetition = float(sampling.repetition_penalty[row])
    result[seen] = np.where(result[seen] > 0, result[seen] / repetition, result[seen] * repetition)
    generated, counts = np.unique(history[sampling.history_prompt[row] :], return_counts=True)
    result[generated] -= float(sampling.presence_penalty[row]) + float(sampling.frequency_penalty[row]) * counts
    return result


def filtered(logits: F64, *, top_k: int, top_p: float, min_p: float) -> F64:
    """Probabilities after top-k, top-p and min-p, zero where filtered away; at least the best token stays."""
    order = best_first(logits)
    if top_k > 0:
        order = order[:top_k]
    probabilities = softmax(logits[order])
    if top_p < 1.0:
        before = np.cumsum(probabilities) - probabilities
        keep = max(1, int(np.count_nonzero(before < top_p)))
        order, probabilities = order[:keep], probabilities[:keep]
    if min_p > 0.0:
        keep = max(1, int(np.count_nonzero(probabilities >= min_p * probabilities[0])))
        order, probabilities = order[:keep], probabilities[:keep]
    result = np.zeros(len(logits))
    result[order] = probabilities / probabilities.sum()
    return result


def draw(probabilities: F64, random: float) -> int:
    """The first token, in id order, whose cumulative probability exceeds `random`."""
    cumulative = np.cumsum(probabilities)
    token = int(np.searchsorted(cumulative, random * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(probabilities)[-1]))


def sample_row(logits: F32, sampling: SamplingBatch, row: int) -> int:
    if sampling.known[row] >= 0:
        return int(sampling.known[row])
    adjusted = penalised(logits, sampling, row)
    temperature = float(sampling.temperature[row])
    if temperature == 0.0:
        return int(np.argmax(adjusted))
    probabilities = filtered(
        adjusted / temperature,
        top_k=int(sampling.top_k[row]),
        top_p=float(sampling.top_p[row]),
        min_p=float(sampling.min_p[row]),
    )
    return draw(probabilities, uniform(int(sampling.seeds[row]), int(sampling.positions[row])))


def sample(logits: F32, sampling: SamplingBatch) -> tuple[I32, F32, I32, F32]:
    """Tokens, their log-probabilities, and the best ids with theirs, for every row of `logits`."""
    rows = len(logits)
    tokens = np.array([sample_row(logits[i], sampling, i) for i in range(rows)], dtype=np.int32)
    num_best = max(sampling.num_logprobs, 0)
    logprobs = np.zeros(rows if sampling.num_logprobs >= 0 else 0, dtype=np.float32)
    top_ids = np.zeros((rows, num_best), dtype=np.int32)
    top_logprobs = np.zeros((rows, num_best), dtype=np.float32)
    for i in range(len(logprobs)):
        own = log_softmax(logits[i])
        logprobs[i] = own[tokens[i]]
        top_ids[i] = best_first(logits[i].astype(np.float64))[:num_best]
        top_logprobs[i] = own[top_ids[i]]
    return tokens, logprobs, top_ids, top_logprobs
