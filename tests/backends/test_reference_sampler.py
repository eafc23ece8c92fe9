"""The sampler's specification against small cases worked out by hand, and its draws against their distribution."""

from dataclasses import replace

import numpy as np
import pytest

from sojourn.backends.protocol import SamplingBatch
from sojourn.backends.reference_sampler import draw, filtered, penalised, sample, uniform


def batch(rows: int = 1) -> SamplingBatch:
    def column(value: float, dtype: type[np.generic]) -> np.ndarray:
        return np.full(rows, value, dtype=dtype)

    return SamplingBatch(
        temperature=column(1, np.float32),
        top_k=column(0, np.int32),
        top_p=column(1, np.float32),
        min_p=column(0, np.float32),
        repetition_penalty=column(1, np.float32),
        presence_penalty=column(0, np.float32),
        frequency_penalty=column(0, np.float32),
        seeds=column(7, np.uint64),
        positions=np.arange(rows, dtype=np.int64),
        bias_offsets=np.zeros(rows + 1, dtype=np.int64),
        bias_ids=np.zeros(0, dtype=np.int32),
        bias_values=np.zeros(0, dtype=np.float32),
        history_offsets=np.zeros(rows + 1, dtype=np.int64),
        history=np.zeros(0, dtype=np.int32),
        history_prompt=np.zeros(rows, dtype=np.int32),
        known=np.full(rows, -1, dtype=np.int32),
        num_logprobs=-1,
    )


def test_uniform_is_a_function_of_seed_and_position() -> None:
    assert uniform(3, 100) == uniform(3, 100)
    assert len({uniform(seed, position) for seed in range(20) for position in range(20)}) == 400
    assert uniform(2**64 - 1, 2**40) < 1.0


def test_bias_comes_before_penalties_and_presence_counts_output_only() -> None:
    sampling = replace(
        batch(),
        bias_offsets=np.array([0, 1], dtype=np.int64),
        bias_ids=np.array([0], dtype=np.int32),
        bias_values=np.array([1.0], dtype=np.float32),
        history_offsets=np.array([0, 4], dtype=np.int64),
        history=np.array([0, 1, 2, 2], dtype=np.int32),  # 0 and 1 are the prompt
        history_prompt=np.array([2], dtype=np.int32),
        repetition_penalty=np.array([2.0], dtype=np.float32),
        presence_penalty=np.array([0.25], dtype=np.float32),
        frequency_penalty=np.array([0.5], dtype=np.float32),
    )
    adjusted = penalised(np.array([1.0, -1.0, 4.0, 3.0], dtype=np.float32), sampling, 0)
    assert adjusted.tolist() == [(1.0 + 1.0) / 2, -1.0 * 2, 4.0 / 2 - 0.25 - 2 * 0.5, 3.0]


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "kept"),
    [
        (0, 1.0, 0.0, [0, 1, 2, 3]),
        (2, 1.0, 0.0, [0, 1]),
        (0, 0.49, 0.0, [1]),  # the best alone has half
        (0, 0.51, 0.0, [0, 1]),
        (0, 1.0, 0.45, [0, 1]),
        (3, 0.9, 0.3, [0, 1, 2]),  # top-p is of what top-k left: 8 of 15, 4 of 15, then 3 of 15
        (1, 1.0, 0.0, [1]),
    ],
)
def test_filters(top_k: int, top_p: float, min_p: float, kept: list[int]) -> None:
    logits = np.log(np.array([4.0, 8.0, 3.0, 1.0]))
    probabilities = filtered(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    assert np.flatnonzero(probabilities).tolist() == kept
    assert probabilities.sum() == pytest.approx(1.0)


def test_equal_logits_go_to_the_lower_id() -> None:
    assert np.flatnonzero(filtered(np.zeros(5), top_k=2, top_p=1.0, min_p=0.0)).tolist() == [0, 1]


def test_the_draw_is_the_inverse_distribution_in_id_order() -> None:
    probabilities = np.array([0.0, 0.25, 0.0, 0.75])
    assert [draw(probabilities, random) for random in (0.0, 0.24, 0.25, 0.999)] == [1, 1, 3, 3]


def test_draws_follow_the_distribution() -> None:
    rows = 4000
    wanted = np.array([0.1, 0.2, 0.3, 0.4])
    logits = np.tile(np.log(wanted).astype(np.float32), (rows, 1))
    tokens, *_ = sample(logits, batch(rows))
    assert np.bincount(tokens, minlength=4) / rows == pytest.approx(wanted, abs=0.03)


def test_log_probabilities_are_the_models_own() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.7]], dtype=np.float32))
    sampling = replace(batch(), temperature=np.zeros(1, dtype=np.float32), num_logprobs=2)
    tokens, logprobs, top_ids, top_logprobs = sample(logits, sampling)
    assert tokens.tolist() == [2]
    assert np.exp(logprobs) == pytest.approx([0.7])
    assert top_ids.tolist() == [[2, 1]]
    assert np.exp(top_logprobs[0]) == pytest.approx([0.7, 0.2])
