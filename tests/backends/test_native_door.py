"""No wrong batch passes the door: each breaks a law, and the back end goes on working."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import Batch
from sojourn.core.errors import CorruptionError, ModelError
from sojourn.core.step import SamplingParams
from sojourn.models.packed import MatrixKind, PackedModel
from tests.backends.test_native_sampler import sampling_batch
from tests.backends.tiny import VOCAB, batch_of, gemma, llama, random_model

PAGES = 8
EDITS = [(0, 0, 0, 1), (0, 0, 1, 2)]


def backend() -> NativeBackend:
    model = random_model(llama(context_length=64), MatrixKind.F32)
    return NativeBackend(model, page_size=16, num_pages=(PAGES, 1), kv_dtype="f16", threads=1, seqs_max=2)


def good() -> Batch:
    return batch_of([(0, 0, list(range(20)))], EDITS)


def changed(name: str, value: list[int] | list[list[int]]) -> Callable[[], Batch]:
    field: dict[str, Any] = {name: np.array(value, dtype=np.int32)}
    return lambda: replace(good(), **field)


def sampled(**arrays: NDArray[np.generic] | int) -> Callable[[], Batch]:
    """One sampled row whose sampling arrays differ from good ones."""
    sampling = sampling_batch(SamplingParams(temperature=1.0), 1)
    values: dict[str, Any] = dict(arrays)
    return lambda: replace(batch_of([(0, 0, [1, 2])], EDITS, [1]), sampling=replace(sampling, **values))


BAD: dict[str, tuple[Callable[[], Batch], str]] = {
    "a token id past the vocabulary": (changed("tokens", [VOCAB] * 20), "token id"),
    "a negative token id": (changed("tokens", [-1] * 20), "token id"),
    "more tokens than rows": (changed("tokens", [1] * 21), "20 rows for 21 tokens"),
    "a sequence past the last": (changed("seqs", [2]), "sequence 2"),
    "a negative sequence": (changed("seqs", [-1]), "sequence -1"),
    "a sequence twice": (lambda: batch_of([(0, 0, [1]), (0, 1, [1])], EDITS), "twice"),
    "a negative start": (changed("starts", [-1]), "starts at -1"),
    "past the table": (changed("starts", [13]), "pool 0 holds 2 pages"),
    "past the context": (changed("starts", [45]), "past the context"),
    "a start that overflows": (changed("starts", [2**31 - 1]), "past the context"),
    "no rows": (changed("lengths", [0]), "0 rows"),
    "fewer starts than sequences": (changed("starts", []), "0 starts"),
    "a page past the pool": (changed("table_edits", [[0, 0, 0, PAGES]]), "page 8"),
    "a negative page": (changed("table_edits", [[0, 0, 0, -1]]), "page -1"),
    "an edit of no sequence": (changed("table_edits", [[2, 0, 0, 1]]), "sequence 2"),
    "an edit of no pool": (changed("table_edits", [[0, 2, 0, 1]]), "pool 2"),
    "an edit at a negative index": (changed("table_edits", [[0, 0, -1, 1]]), "index -1"),
    "an edit at an absurd index": (changed("table_edits", [[0, 0, 2**30, 1]]), "index"),
    "the null page where rows go": (changed("table_edits", [[0, 0, 0, 0], [0, 0, 1, 1]]), "null page"),
    "a logit row past the last": (changed("logit_rows", [20]), "logit row 20"),
    "logit rows out of order": (changed("logit_rows", [3, 3]), "logit row 3"),
    "a negative logit row": (changed("logit_rows", [-1]), "logit row -1"),
    "edits without four columns": (changed("table_edits", [[1, 2, 3]]), "3 columns"),
    "edits of one dimension": (changed("table_edits", [1, 2, 3, 4]), "dimensions"),
    "tokens of another type": (lambda: replace(good(), tokens=np.zeros(20, dtype=np.int64)), "int64"),
    "tokens with gaps": (lambda: replace(good(), tokens=np.zeros(40, dtype=np.int32)[::2]), "contiguous"),
    "a history past the vocabulary": (
        sampled(history=np.array([VOCAB], np.int32), history_offsets=np.array([0, 1])),
        "history",
    ),
    "a bias past the vocabulary": (
        sampled(bias_ids=np.array([-1], np.int32), bias_values=np.ones(1, np.float32), bias_offsets=np.array([0, 1])),
        "bias",
    ),
    "offsets past the history": (sampled(history_offsets=np.array([0, 1])), "offsets"),
    "offsets that fall": (sampled(history_offsets=np.array([1, 0])), "offsets"),
    "more prompt than history": (sampled(history_prompt=np.ones(1, np.int32)), "prompt tokens"),
    "a temperature below zero": (sampled(temperature=-np.ones(1, np.float32)), "temperature"),
    "a temperature that is no number": (sampled(temperature=np.full(1, np.nan, np.float32)), "temperature"),
    "arrays of different lengths": (sampled(top_k=np.zeros(2, np.int32)), "length"),
    "too many log-probabilities": (sampled(num_logprobs=VOCAB + 1), "num_logprobs"),
}


@pytest.mark.parametrize(("make", "complaint"), BAD.values(), ids=BAD)
def test_a_wrong_batch_breaks_a_law(make: Callable[[], Batch], complaint: str) -> None:
    native = backend()
    with pytest.raises(CorruptionError, match=complaint):
        native.step(make())
    logits = native.step(good()).logits
    assert logits is not None
    assert np.isfinite(logits).all()


def test_a_window_that_was_let_go_may_not_be_seen() -> None:
    model = random_model(gemma(), MatrixKind.F32)
    native = NativeBackend(model, page_size=16, num_pages=(PAGES, PAGES), kv_dtype="f16", threads=1, seqs_max=1)
    edits = [(0, pool, i, 1 + i) for pool in (0, 1) for i in range(4)]
    native.step(batch_of([(0, 0, [1] * 50)], edits))
    native.step(batch_of([(0, 55, [1])], [(0, 1, 0, 0)]))  # sees [16, 55]
    with pytest.raises(CorruptionError, match="page index 0 of pool 1"):
        native.step(batch_of([(0, 54, [1])]))


def test_a_closed_back_end_refuses() -> None:
    native = backend()
    native.close()
    native.close()
    with pytest.raises(CorruptionError, match="closed"):
        native.step(good())


def without(model: PackedModel, name: str) -> PackedModel:
    return PackedModel(
        model.config,
        {key: matrix for key, matrix in model.matrices.items() if key != name},
        {key: vector for key, vector in model.vectors.items() if key != name},
    )


@pytest.mark.parametrize("name", ["embed", "layers.1.down", "layers.0.attn_norm", "final_norm"])
def test_a_missing_weight_is_named(name: str) -> None:
    model = without(random_model(llama(), MatrixKind.F32), name)
    with pytest.raises(ModelError, match=f"{name}: missing"):
        NativeBackend(model, page_size=16, num_pages=(2, 1), kv_dtype="f16", threads=1, seqs_max=1)


def test_a_wrong_shape_is_named() -> None:
    model = random_model(llama(), MatrixKind.F32)
    wrong = {**model.matrices, "layers.0.q": model.matrices["layers.0.k"]}
    with pytest.raises(ModelError, match=r"layers.0.q: is 32 x 64, must be 96 x 64"):
        NativeBackend(
            PackedModel(model.config, wrong, model.vectors),
            page_size=16,
            num_pages=(2, 1),
            kv_dtype="f16",
            threads=1,
            seqs_max=1,
        )


def test_no_head_is_needed_only_where_embeddings_are_tied() -> None:
    model = without(random_model(llama(), MatrixKind.F32), "head")
    with pytest.raises(ModelError, match="head: missing"):
        NativeBackend(model, page_size=16, num_pages=(2, 1), kv_dtype="f16", threads=1, seqs_max=1)


@pytest.mark.parametrize("page_size", [0, 3, 512])
def test_page_sizes_are_powers_of_two(page_size: int) -> None:
    model = random_model(llama(), MatrixKind.F32)
    with pytest.raises(ModelError, match="page_size"):
        NativeBackend(model, page_size=page_size, num_pages=(2, 1), kv_dtype="f16", threads=1, seqs_max=1)
