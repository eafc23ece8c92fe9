"""The native back end: hands packed weights and batches to the C++ core, and checks them at the door.

Owns the core. Types and shapes are checked here; every bound of a value (token ids, rows of sequences, page numbers,
positions against page tables) is checked in the core, before a kernel runs. A batch that breaks one is a broken law.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.backends import _native
from sojourn.backends.protocol import I32, Batch, BatchOutput, KvDtype, SamplingBatch
from sojourn.core.errors import CorruptionError, ModelError, law
from sojourn.core.step import Pool
from sojourn.models.config import Activation, ModelConfig, Rope
from sojourn.models.packed import MatrixKind, PackedMatrix, PackedModel

InstructionSet = Literal["auto", "portable", "avx2", "avx512"]

# Of the bytes of a page and of the arithmetic behind them: a change of either raises it, for pages outlive the process.
KV_FORMAT_VERSION = 1

_ACTIVATIONS = {Activation.SILU: _native.Activation.SILU, Activation.GELU_TANH: _native.Activation.GELU_TANH}


def cpu_features() -> dict[str, bool]:
    """Instruction sets by name, and whether this processor and build can use them."""
    return _native.cpu_features()


class NativeBackend:
    """Implements `backends.protocol.Backend`. Page 0 of each pool is the null page."""

    def __init__(
        self,
        model: PackedModel,
        *,
        page_size: int,
        num_pages: tuple[int, int],
        kv_dtype: KvDtype,
        threads: int,
        seqs_max: int,
        instruction_set: InstructionSet = "auto",
    ) -> None:
        self._vocab_size = model.config.vocab_size
        self._seqs_max = seqs_max
        self._page_shape = f"pages of {page_size} {kv_dtype}"
        try:
            self._core: _native.Core | None = _native.Core(
                weights=_weights_of(model),
                page_size=page_size,
                full_pages=num_pages[0],
                sliding_pages=num_pages[1],
                half_kv=kv_dtype == "f16",
                threads=threads,
                sequences=seqs_max,
                instruction_set=instruction_set,
            )
        except ValueError as error:
            raise ModelError(f"{model.config.name}: {error}") from error

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def seqs_max(self) -> int:
        return self._seqs_max

    @property
    def instruction_set(self) -> str:
        """The set in use, never "auto"."""
        return self._open_core().instruction_set

    @property
    def kv_format(self) -> str:
        """The same bytes mean the same KV only where this is the same (and the model)."""
        return f"native {KV_FORMAT_VERSION} {self.instruction_set} {self._page_shape}"

    def page_bytes(self, pool: Pool) -> int:
        """Of one page, all its layers; 0 where no layer has its KV in this pool."""
        return self._open_core().page_bytes(pool)

    def read_pages(self, pool: Pool, pages: I32) -> NDArray[np.uint8]:
        """Copies, a row each. Nothing may be writing to these pages; a step that writes others may be running."""
        try:
            return self._open_core().read_pages(pool, np.ascontiguousarray(pages, dtype=np.int32))
        except ValueError as error:
            raise CorruptionError(str(error)) from error

    def write_pages(self, pool: Pool, pages: I32, data: NDArray[np.uint8]) -> None:
        """Rows become pages that no step in flight may touch."""
        try:
            self._open_core().write_pages(pool, np.ascontiguousarray(pages, dtype=np.int32), data)
        except ValueError as error:
            raise CorruptionError(str(error)) from error

    def _open_core(self) -> _native.Core:
        if self._core is None:
            raise CorruptionError("the back end was closed")
        return self._core

    def step(self, batch: Batch) -> BatchOutput:
        core = self._open_core()
        _check_batch(batch)
        sampling = None if batch.sampling is None else _sampling_of(batch.sampling)
        try:
            tokens, logprobs, top_ids, top_logprobs, logits = core.step(
                batch.tokens,
                batch.seqs,
                batch.starts,
                batch.lengths,
                batch.table_edits,
                batch.logit_rows,
                sampling,
                batch.want_logits,
            )
        except (ValueError, RuntimeError) as error:
            raise CorruptionError(str(error)) from error
        return BatchOutput(tokens, logprobs, top_ids, top_logprobs, logits if batch.want_logits else None)

    def close(self) -> None:
        self._core = None


def _check(name: str, array: NDArray[np.generic], dtype: type[np.generic], dimensions: int = 1) -> None:
    law(array.dtype == dtype, "%s has type %s", name, array.dtype)
    law(array.ndim == dimensions, "%s has %d dimensions, not %d", name, array.ndim, dimensions)
    law(array.flags.c_contiguous, "%s is not contiguous", name)


def _check_batch(batch: Batch) -> None:
    _check("tokens", batch.tokens, np.int32)
    _check("seqs", batch.seqs, np.int32)
    _check("starts", batch.starts, np.int32)
    _check("lengths", batch.lengths, np.int32)
    _check("logit_rows", batch.logit_rows, np.int32)
    _check("table_edits", batch.table_edits, np.int32, 2)
    law(batch.table_edits.shape[1] == 4, "table_edits has %d columns, not 4", batch.table_edits.shape[1])


def _sampling_of(sampling: SamplingBatch) -> _native.SamplingArrays:
    _check("temperature", sampling.temperature, np.float32)
    _check("top_k", sampling.top_k, np.int32)
    _check("top_p", sampling.top_p, np.float32)
    _check("min_p", sampling.min_p, np.float32)
    _check("repetition_penalty", sampling.repetition_penalty, np.float32)
    _check("presence_penalty", sampling.presence_penalty, np.float32)
    _check("frequency_penalty", sampling.frequency_penalty, np.float32)
    _check("seeds", sampling.seeds, np.uint64)
    _check("positions", sampling.positions, np.int64)
    _check("bias_offsets", sampling.bias_offsets, np.int64)
    _check("bias_ids", sampling.bias_ids, np.int32)
    _check("bias_values", sampling.bias_values, np.float32)
    _check("history_offsets", sampling.history_offsets, np.int64)
    _check("history", sampling.history, np.int32)
    _check("history_prompt", sampling.history_prompt, np.int32)
    _check("known", sampling.known, np.int32)
    return _native.SamplingArrays(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seeds=sampling.seeds,
        positions=sampling.positions,
        bias_offsets=sampling.bias_offsets,
        bias_ids=sampling.bias_ids,
        bias_values=sampling.bias_values,
        history_offsets=sampling.history_offsets,
        history=sampling.history,
        history_prompt=sampling.history_prompt,
        known=sampling.known,
        num_logprobs=sampling.num_logprobs,
    )


def _rope_of(rope: Rope) -> _native.Rope:
    return _native.Rope(list(rope.inv_freq), rope.attention_factor)


def _config_of(model: ModelConfig) -> _native.ModelConfig:
    attention = model.attention
    law(len(attention.layer_slides) == model.num_layers, "layer_slides has %d entries", len(attention.layer_slides))
    config = _native.ModelConfig()
    config.vocab_size = model.vocab_size
    config.hidden_size = model.hidden_size
    config.intermediate_size = model.intermediate_size
    config.context_length = model.context_length
    config.rms_norm_eps = model.rms_norm_eps
    config.activation = _ACTIVATIONS[model.activation]
    config.embedding_scale = model.embedding_scale
    config.logit_softcap = model.logit_softcap
    config.tied_embeddings = model.tied_embeddings
    config.post_norms = model.post_norms
    config.num_heads = attention.num_heads
    config.num_kv_heads = attention.num_kv_heads
    config.head_dim = attention.head_dim
    config.query_scale = attention.query_scale
    config.qk_norm = attention.qk_norm
    config.qkv_bias = attention.qkv_bias
    config.attention_softcap = attention.logit_softcap
    config.sliding_window = attention.sliding_window
    config.layer_slides = list(attention.layer_slides)
    config.rope = _rope_of(attention.rope)
    config.rope_sliding = _rope_of(attention.rope if attention.rope_sliding is None else attention.rope_sliding)
    return config


def _halves(array: NDArray[np.float16] | None) -> NDArray[np.uint16] | None:
    return None if array is None else array.reshape(-1).view(np.uint16)


def _add_matrix(weights: _native.Weights, name: str, matrix: PackedMatrix) -> None:
    if matrix.kind is not MatrixKind.F32 and matrix.scales is None:
        raise ModelError(f"{name}: a quantised matrix without scales")
    weights.add_matrix(
        name,
        matrix.kind.value,
        matrix.rows,
        matrix.cols,
        matrix.data.reshape(-1).view(np.uint8),
        _halves(matrix.scales),
        _halves(matrix.mins),
    )


def _weights_of(model: PackedModel) -> _native.Weights:
    """The model for the core, which reads the arrays in place and keeps them alive."""
    weights = _native.Weights(_config_of(model.config))
    for name, matrix in model.matrices.items():
        _add_matrix(weights, name, matrix)
    for name, vector in model.vectors.items():
        weights.add_vector(name, vector)
    return weights
