"""The core's sampler against its specification, backends/reference_sampler.py."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import Batch, BatchOutput, SamplingBatch
from sojourn.backends.reference_sampler import best_first, sample
from sojourn.core.errors import CorruptionError
from sojourn.core.step import SamplingParams
from sojourn.models.packed import MatrixKind, PackedModel
from tests.backends.tiny import batch_of, llama, random_model

VOCAB = 3000  # three blocks of sums, the last one partial
ROWS = 48
SEED = 1 << 63 | 12345


def column(values: Sequence[float], dtype: type[np.generic]) -> np.ndarray:
    return np.array(values, dtype=dtype)


def sampling_batch(
    params: SamplingParams, rows: int, history: Sequence[int] = (), num_prompt: int = 0
) -> SamplingBatch:
    """The same parameters for every row, at positions 1, 2, ..."""
    bias_ids = [token for token, _ in params.logit_bias]
    bias_values = [value for _, value in params.logit_bias]
    return SamplingBatch(
        temperature=column([params.temperature] * rows, np.float32),
        top_k=column([params.top_k] * rows, np.int32),
        top_p=column([params.top_p] * rows, np.float32),
        min_p=column([params.min_p] * rows, np.float32),
        repetition_penalty=column([params.repetition_penalty] * rows, np.float32),
        presence_penalty=column([params.presence_penalty] * rows, np.float32),
        frequency_penalty=column([params.frequency_penalty] * rows, np.float32),
        seeds=column([params.seed] * rows, np.uint64),
        positions=column(range(1, rows + 1), np.int64),
        bias_offsets=np.arange(rows + 1, dtype=np.int64) * len(bias_ids),
        bias_ids=column(bias_ids * rows, np.int32),
        bias_values=column(bias_values * rows, np.float32),
        history_offsets=np.arange(rows + 1, dtype=np.int64) * len(history),
        history=column(list(history) * rows, np.int32),
        history_prompt=column([num_prompt] * rows, np.int32),
        known=column([-1] * rows, np.int32),
        num_logprobs=-1 if params.num_logprobs is None else params.num_logprobs,
    )


def model(peak: float = 1.0) -> PackedModel:
    """`peak` spreads the logits: high makes a distribution with few likely tokens."""
    made = random_model(replace(llama(), vocab_size=VOCAB), MatrixKind.F32)
    return PackedModel(
        made.config, made.matrices, {**made.vectors, "final_norm": made.vectors["final_norm"] * np.float32(peak)}
    )


def backend(packed: PackedModel, threads: int = 2) -> NativeBackend:
    return NativeBackend(packed, page_size=64, num_pages=(2, 1), kv_dtype="f16", threads=threads, seqs_max=1)


def batch(sampling: SamplingBatch, rows: int = ROWS) -> Batch:
    tokens = np.random.default_rng(11).integers(0, VOCAB, rows).tolist()
    return batch_of([(0, 0, tokens)], [(0, 0, 0, 1)], sampling=sampling)


def run(packed: PackedModel, sampling: SamplingBatch, threads: int = 2) -> BatchOutput:
    return backend(packed, threads).step(batch(sampling))


HISTORY = [*np.random.default_rng(2).integers(0, VOCAB, 1200).tolist(), 5, 5, 5, 900]
PARAMS = {
    "greedy": SamplingParams(),
    "plain": SamplingParams(temperature=1.0),
    "hot": SamplingParams(temperature=3.0),
    "top-k": SamplingParams(temperature=1.2, top_k=40),
    "top-k of one": SamplingParams(temperature=1.2, top_k=1),
    "top-k of more than all": SamplingParams(temperature=1.2, top_k=VOCAB + 5),
    "top-p": SamplingParams(temperature=0.9, top_p=0.9),
    "top-p of nearly all": SamplingParams(temperature=1.5, top_p=0.9999),
    "top-p of nearly none": SamplingParams(temperature=1.5, top_p=1e-6),
    "min-p": SamplingParams(temperature=1.0, min_p=0.05),
    "all filters": SamplingParams(temperature=1.3, top_k=100, top_p=0.8, min_p=0.02),
    "bias": SamplingParams(temperature=1.0, logit_bias=((3, 4.0), (2999, 6.0), (0, float("-inf")), (3, 1.0))),
    "greedy with penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=0.5),
    "penalties": SamplingParams(temperature=1.0, top_p=0.95, repetition_penalty=1.3, frequency_penalty=0.5),
}


@pytest.mark.parametrize("peak", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_tokens_are_those_of_the_specification(params: SamplingParams, peak: float) -> None:
    history = HISTORY if params.has_penalties else []
    sampling = sampling_batch(replace(params, seed=SEED), ROWS, history, num_prompt=700 if history else 0)
    output = run(model(peak), sampling)
    assert output.logits is not None
    expected, _, _, _ = sample(output.logits, sampling)
    assert output.tokens.tolist() == expected.tolist()


@pytest.mark.parametrize("count", [0, 1, 20])
def test_log_probabilities_are_those_of_the_models_own_distribution(count: int) -> None:
    sampling = sampling_batch(SamplingParams(temperature=0.5, top_k=5, num_logprobs=count), ROWS)
    output = run(model(), sampling)
    assert output.logits is not None
    _, logprobs, top_ids, top_logprobs = sample(output.logits, sampling)
    np.testing.assert_allclose(output.logprobs, logprobs, atol=2e-5)
    assert output.top_ids.tolist() == top_ids.tolist()
    np.testing.assert_allclose(output.top_logprobs, top_logprobs, atol=2e-5)


def test_a_known_token_is_given_and_scored_like_a_drawn_one() -> None:
    """Between rows that are drawn, and whatever their parameters would have done to it."""
    params = SamplingParams(temperature=0.7, top_k=3, logit_bias=((5, -100.0),), num_logprobs=4)
    drawn = sampling_batch(params, ROWS)
    known = drawn.known.copy()
    known[::3] = np.random.default_rng(4).integers(0, VOCAB, len(known[::3]))
    sampling = replace(drawn, known=known)
    output, other = run(model(), sampling), run(model(), drawn)
    assert output.logits is not None
    tokens, logprobs, top_ids, top_logprobs = sample(output.logits, sampling)
    assert output.tokens.tolist() == tokens.tolist() == np.where(known >= 0, known, other.tokens).tolist()
    np.testing.assert_allclose(output.logprobs, logprobs, atol=2e-5)
    assert output.top_ids.tolist() == top_ids.tolist()
    np.testing.assert_allclose(output.top_logprobs, top_logprobs, atol=2e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_known_token_hides_no_logits_that_are_not_numbers(value: float) -> None:
    packed = model()
    norm = packed.vectors["final_norm"].copy()
    norm[3] = value
    broken = PackedModel(packed.config, packed.matrices, {**packed.vectors, "final_norm": norm})
    sampling = sampling_batch(SamplingParams(num_logprobs=0), ROWS)
    with pytest.raises(CorruptionError, match="not finite"):
        run(broken, replace(sampling, known=np.full(ROWS, 7, dtype=np.int32)))


def test_a_draw_depends_on_seed_and_position_only() -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    one = run(model(), sampling_batch(params, ROWS), threads=1).tokens
    assert one.tolist() == run(model(), sampling_batch(params, ROWS), threads=2).tokens.tolist()
    assert one.tolist() != run(model(), sampling_batch(replace(params, seed=4), ROWS)).tokens.tolist()
    moved = sampling_batch(params, ROWS)
    shifted = replace(moved, positions=moved.positions + 1)
    assert one.tolist() != run(model(), shifted).tokens.tolist()


def test_equal_logits_go_to_the_lower_id() -> None:
    packed = model(peak=0.0)
    assert set(run(packed, sampling_batch(SamplingParams(), ROWS)).tokens.tolist()) == {0}
    filtered = SamplingParams(temperature=1.0, top_k=7, num_logprobs=3)
    output = run(packed, sampling_batch(filtered, ROWS))
    assert set(output.tokens.tolist()) <= set(range(7))
    assert output.logits is not None
    assert output.top_ids[0].tolist() == best_first(output.logits[0].astype(np.float64))[:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_an_error(value: float, temperature: float) -> None:
    packed = model()
    norm = packed.vectors["final_norm"].copy()
    norm[3] = value
    broken = PackedModel(packed.config, packed.matrices, {**packed.vectors, "final_norm": norm})
    with pytest.raises(CorruptionError, match="not finite"):
        run(broken, sampling_batch(SamplingParams(temperature=temperature, top_p=0.9), ROWS))
