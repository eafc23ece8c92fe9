"""No wrong batch passes the door: each breaks a law, and the back end goes on working."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sojourn.backends import _native
from sojourn.backends.native import InstructionSet, KvDtype, NativeBackend, cpu_features
from sojourn.backends.protocol import Batch, BatchOutput
from sojourn.core.errors import CorruptionError, ModelError
from sojourn.core.step import SamplingParams
from sojourn.models.packed import MatrixKind, PackedModel
from tests.backends.test_native_sampler import sampling_batch
from tests.backends.tiny import VOCAB, batch_of, gemma, llama, random_model

SETS: list[InstructionSet] = [name for name in ("portable", "avx2", "avx512") if cpu_features()[name]]
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
    "a known token past the vocabulary": (sampled(known=np.array([VOCAB], dtype=np.int32)), "known token 90"),
    "a known token below -1": (sampled(known=np.array([-2], dtype=np.int32)), "known token -2"),
    "known tokens of fewer rows": (sampled(known=np.empty(0, dtype=np.int32)), "differ in length"),
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
    "a temperature without an end": (sampled(temperature=np.full(1, np.inf, np.float32)), "temperature"),
    "a temperature without an inverse": (sampled(temperature=np.full(1, 1e-39, np.float32)), "temperature"),
    "a top_p that a float rounds to 0": (sampled(top_p=np.full(1, 1e-46, np.float32)), "top_p"),
    "a min_p above 1": (sampled(min_p=np.full(1, 1.5, np.float32)), "min_p"),
    "a min_p that is no number": (sampled(min_p=np.full(1, np.nan, np.float32)), "min_p"),
    "a repetition penalty of 0": (sampled(repetition_penalty=np.zeros(1, np.float32)), "repetition_penalty"),
    "a repetition penalty without an end": (
        sampled(repetition_penalty=np.full(1, np.inf, np.float32)),
        "repetition_penalty",
    ),
    "a presence penalty that is no number": (sampled(presence_penalty=np.full(1, np.nan, np.float32)), "presence"),
    "a frequency penalty without an end": (sampled(frequency_penalty=np.full(1, -np.inf, np.float32)), "frequency"),
    "a bias without an end": (
        sampled(
            bias_ids=np.array([1], np.int32), bias_values=np.full(1, np.inf, np.float32), bias_offsets=np.array([0, 1])
        ),
        "bias of inf",
    ),
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
    native.step(batch_of([(0, 55, [1])], [(0, 1, 0, 0), *edits[5:]]))  # sees [16, 55]
    with pytest.raises(CorruptionError, match="page index 0 of pool 1"):
        native.step(batch_of([(0, 54, [1])]))
    native.step(batch_of([(0, 54, [1])], edits[4:]))


def test_a_sequence_finds_nothing_that_the_row_had_before() -> None:
    native = backend()
    native.step(batch_of([(0, 0, [1] * 60)], [(0, 0, index, 1 + index) for index in range(4)]))
    native.step(batch_of([(0, 0, [2] * 16)], [(0, 0, 0, 5)]))
    with pytest.raises(CorruptionError, match="pool 0 holds 1 pages"):
        native.step(batch_of([(0, 16, [2])]))
    with pytest.raises(CorruptionError, match="page index 1 of pool 0, which is the null page"):
        native.step(batch_of([(0, 32, [2])], [(0, 0, 2, 6)]))
    native.step(batch_of([(0, 16, [2])], [(0, 0, 1, 7)]))


def with_norm(value: float) -> PackedModel:
    """A model with one weight of its first norm changed: all keys and values of its first layer follow."""
    model = random_model(llama(context_length=64), MatrixKind.F32)
    norm = model.vectors["layers.0.attn_norm"].copy()
    norm[5] = value
    return PackedModel(model.config, model.matrices, {**model.vectors, "layers.0.attn_norm": norm})


def step_on(model: PackedModel, instruction_set: InstructionSet, kv_dtype: KvDtype, rows: list[int]) -> BatchOutput:
    native = NativeBackend(
        model,
        page_size=16,
        num_pages=(PAGES, 1),
        kv_dtype=kv_dtype,
        threads=2,
        seqs_max=1,
        instruction_set=instruction_set,
    )
    return native.step(batch_of([(0, 0, [1, 2, 3])], EDITS, rows))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_a_fault_in_a_prompt_stops_the_step_although_no_row_is_sampled(
    fault: float, kv_dtype: KvDtype, instruction_set: InstructionSet
) -> None:
    with pytest.raises(CorruptionError, match=r"keys or values of row \d are not finite"):
        step_on(with_norm(fault), instruction_set, kv_dtype, [])


@pytest.mark.parametrize("instruction_set", SETS)
def test_keys_beyond_16_bits_saturate(instruction_set: InstructionSet) -> None:
    logits = step_on(with_norm(1e8), instruction_set, "f16", [2]).logits
    assert logits is not None
    assert np.isfinite(logits).all()


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


def test_weights_become_a_core_once() -> None:
    config = _native.ModelConfig()
    config.vocab_size = config.hidden_size = config.intermediate_size = config.context_length = 32
    config.num_heads = config.num_kv_heads = 1
    config.head_dim = 16
    config.layer_slides = [False]
    config.rope = config.rope_sliding = _native.Rope([1.0] * 8, 1.0)
    weights = _native.Weights(config)
    for complaint in ("missing", "have become a core"):  # the first core takes the weights, and then refuses them
        with pytest.raises(ValueError, match=complaint):
            _native.Core(
                weights=weights,
                page_size=16,
                full_pages=2,
                sliding_pages=1,
                half_kv=True,
                threads=1,
                sequences=1,
                instruction_set="portable",
            )
    with pytest.raises(ValueError, match="have become a core"):
        weights.add_vector("final_norm", np.ones(64, dtype=np.float32))
    with pytest.raises(ValueError, match="have become a core"):
        weights.add_matrix("embed", "f32", 16, 4, np.zeros(256, dtype=np.uint8), None, None)


@pytest.mark.parametrize("page_size", [0, 3, 512])
def test_page_sizes_are_powers_of_two(page_size: int) -> None:
    model = random_model(llama(), MatrixKind.F32)
    with pytest.raises(ModelError, match="page_size"):
        NativeBackend(model, page_size=page_size, num_pages=(2, 1), kv_dtype="f16", threads=1, seqs_max=1)
