"""The reference back end: the model in plain numpy f32, written to be read. Oracle of the native core, engine of tests.

Owns unpacked weights, paged KV and page tables. Slow on purpose: every product is taken row by row, so that a row's
bits never depend on the batch, the chunk or the page size. Knows no requests and never chooses a page.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sojourn.backends.protocol import F32, I32, I64, Batch, BatchOutput
from sojourn.backends.reference_sampler import sample
from sojourn.core.errors import law
from sojourn.core.step import MODEL_POOLS, Pool
from sojourn.models.config import Activation, ModelConfig, Rope
from sojourn.models.packed import PackedModel
from sojourn.models.packing import unpack


def silu(x: F32) -> F32:
    return np.asarray(x / (1.0 + np.exp(-x)))


def gelu_tanh(x: F32) -> F32:
    inner = np.float32(np.sqrt(2.0 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (1.0 + np.tanh(inner)))


ACTIVATIONS: dict[Activation, Callable[[F32], F32]] = {Activation.SILU: silu, Activation.GELU_TANH: gelu_tanh}


def rms_norm(x: F32, weight: F32, epsilon: float) -> F32:
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float64)
    return np.asarray(x * (1.0 / np.sqrt(mean + epsilon)).astype(np.float32) * weight)


def soft_cap(x: F32, cap: float) -> F32:
    return x if cap == 0.0 else np.asarray(np.float32(cap) * np.tanh(x / np.float32(cap)))


def rotate(x: F32, positions: I64, rope: Rope) -> F32:
    """RoPE over halves of the last axis; `x` is [rows, heads, head_dim]."""
    angles = positions[:, None] * np.asarray(rope.inv_freq, dtype=np.float64)
    cos = (np.cos(angles) * rope.attention_factor).astype(np.float32)[:, None, :]
    sin = (np.sin(angles) * rope.attention_factor).astype(np.float32)[:, None, :]
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def multiply(x: F32, matrix: F32) -> F32:
    """y = W x for every row of `x`, one row at a time."""
    return np.stack([matrix @ row for row in x])


class ReferenceBackend:
    """Implements `backends.protocol.Backend`."""

    def __init__(self, model: PackedModel, *, page_size: int, num_pages: tuple[int, int], seqs_max: int) -> None:
        self._config = model.config
        self._matrices = {name: unpack(matrix) for name, matrix in model.matrices.items()}
        self._vectors = model.vectors
        self._page_size = page_size
        self._seqs_max = seqs_max
        table = (seqs_max, -(-model.config.context_length // page_size))
        self._tables: dict[Pool, I32] = {pool: np.zeros(table, dtype=np.int32) for pool in MODEL_POOLS}
        self._num_pages = {pool: num_pages[pool] for pool in MODEL_POOLS}
        attention = model.config.attention
        self._pools = [Pool.SWA if slides else Pool.FULL for slides in attention.layer_slides]
        self._kv: list[tuple[F32, F32]] = []  # per layer: K and V, [slots of the pool, kv heads, head_dim]
        for pool in self._pools:
            shape = (num_pages[pool] * page_size, attention.num_kv_heads, attention.head_dim)
            self._kv.append((np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)))

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def seqs_max(self) -> int:
        return self._seqs_max

    @property
    def kv_format(self) -> str:
        """The same bytes mean the same KV only where this is the same (and the model)."""
        return f"reference 1 pages of {self._page_size} f32"

    def page_bytes(self, pool: Pool) -> int:
        """Of one page, all its layers; 0 where no layer has its KV in this pool."""
        attention = self._config.attention
        per_layer = 2 * self._page_size * attention.num_kv_heads * attention.head_dim * 4
        return per_layer * self._pools.count(pool)

    def read_pages(self, pool: Pool, pages: I32) -> NDArray[np.uint8]:
        """Copies, a row each: per layer of the pool K, then V."""
        self._check_pages(pool, pages)
        parts = [array[self._places(pages)] for array in self._arrays(pool)]
        rows = [np.concatenate([part[i].reshape(-1) for part in parts]) for i in range(len(pages) if parts else 0)]
        return np.array(rows, dtype=np.float32).reshape(len(pages), -1).view(np.uint8)

    def write_pages(self, pool: Pool, pages: I32, data: NDArray[np.uint8]) -> None:
        """Rows become pages that no step in flight may touch."""
        law(data.shape == (len(pages), self.page_bytes(pool)), "bytes %s for %d pages", data.shape, len(pages))
        self._check_pages(pool, pages)
        arrays = self._arrays(pool)
        parts = np.split(data.view(np.float32), len(arrays), axis=1) if arrays else []
        for array, part in zip(arrays, parts, strict=True):
            array[self._places(pages)] = part.reshape(len(pages), self._page_size, *array.shape[1:])

    def _check_pages(self, pool: Pool, pages: I32) -> None:
        law(bool(np.all((pages > 0) & (pages < self._num_pages[pool]))), "pages %s are not of pool %d", pages, pool)

    def _arrays(self, pool: Pool) -> list[F32]:
        return [array for owner, kv in zip(self._pools, self._kv, strict=True) if owner is pool for array in kv]

    def _places(self, pages: I32) -> I64:
        """[pages, page_size] places in a layer's arrays."""
        return np.asarray(pages.astype(np.int64)[:, None] * self._page_size + np.arange(self._page_size))

    def close(self) -> None:
        self._kv = []
        self._matrices = {}

    def step(self, batch: Batch) -> BatchOutput:
        self._check(batch)
        for seq, pool, index, page in batch.table_edits:
            law(0 <= page < self._num_pages[Pool(pool)], "page %d is not in pool %d", page, pool)
            self._tables[Pool(pool)][seq, index] = page
            self._tables[Pool(pool)][seq, index + 1 :] = 0
        logits = self._forward(batch)
        shown = logits if batch.want_logits else None
        if batch.sampling is None:
            nothing = np.zeros(0, dtype=np.float32)
            empty = np.zeros((len(logits), 0), dtype=np.float32)
            return BatchOutput(np.zeros(0, dtype=np.int32), nothing, empty.astype(np.int32), empty, shown)
        tokens, logprobs, top_ids, top_logprobs = sample(logits, batch.sampling)
        return BatchOutput(tokens, logprobs, top_ids, top_logprobs, shown)

    def _check(self, batch: Batch) -> None:
        ends = batch.starts.astype(np.int64) + batch.lengths
        law(
            int(batch.lengths.sum()) == len(batch.tokens),
            "%d tokens in rows, %d given",
            batch.lengths.sum(),
            len(batch.tokens),
        )
        law(bool(np.all(batch.lengths > 0)), "a sequence without rows: %s", batch.lengths)
        law(len(set(batch.seqs.tolist())) == len(batch.seqs), "a sequence twice in one step: %s", batch.seqs)
        law(bool(np.all((batch.seqs >= 0) & (batch.seqs < self._seqs_max))), "sequences out of range: %s", batch.seqs)
        law(bool(np.all(batch.tokens >= 0)), "negative token id")
        law(bool(np.all(batch.tokens < self.vocab_size)), "a token id is not below %d", self.vocab_size)
        law(bool(np.all(ends <= self._config.context_length)), "past the context: %s", ends)

    def _forward(self, batch: Batch) -> F32:
        """Logits of the wanted rows, [L, vocab_size]. Writes the KV of every row."""
        config = self._config
        bounds = np.concatenate([[0], np.cumsum(batch.lengths)])
        positions = np.concatenate([start + np.arange(n) for start, n in zip(batch.starts, batch.lengths, strict=True)])
        hidden = self._matrices["embed"][batch.tokens] * np.float32(config.embedding_scale)
        for layer in range(config.num_layers):
            mixed = self._attention(layer, self._norm(hidden, f"layers.{layer}.attn_norm"), batch, bounds, positions)
            if config.post_norms:
                mixed = self._norm(mixed, f"layers.{layer}.post_attn_norm")
            hidden = hidden + mixed
            mixed = self._feed_forward(layer, self._norm(hidden, f"layers.{layer}.ffn_norm"))
            if config.post_norms:
                mixed = self._norm(mixed, f"layers.{layer}.post_ffn_norm")
            hidden = hidden + mixed
        if len(batch.logit_rows) == 0:
            return np.zeros((0, config.vocab_size), dtype=np.float32)
        head = self._matrices["embed" if config.tied_embeddings else "head"]
        final = self._norm(hidden[batch.logit_rows], "final_norm")
        return soft_cap(multiply(final, head), config.logit_softcap)

    def _norm(self, x: F32, name: str) -> F32:
        return rms_norm(x, self._vectors[name], self._config.rms_norm_eps)

    def _feed_forward(self, layer: int, x: F32) -> F32:
        gate = multiply(x, self._matrices[f"layers.{layer}.gate"])
        up = multiply(x, self._matrices[f"layers.{layer}.up"])
        return multiply(ACTIVATIONS[self._config.activation](gate) * up, self._matrices[f"layers.{layer}.down"])

    def _project(self, layer: int, x: F32, name: str, heads: int) -> F32:
        """[rows, heads, head_dim] of "q", "k" or "v", with bias and, for q and k, the norm over head_dim."""
        attention = self._config.attention
        y = multiply(x, self._matrices[f"layers.{layer}.{name}"])
        if attention.qkv_bias:
            y = y + self._vectors[f"layers.{layer}.{name}_bias"]
        y = y.reshape(len(x), heads, attention.head_dim)
        if attention.qk_norm and name != "v":
            y = self._norm(y, f"layers.{layer}.{name}_norm")
        return y

    def _attention(self, layer: int, x: F32, batch: Batch, bounds: I64, positions: I64) -> F32:
        attention = self._config.attention
        slides = attention.layer_slides[layer]
        rope = attention.rope_sliding if slides and attention.rope_sliding is not None else attention.rope
        q = rotate(self._project(layer, x, "q", attention.num_heads), positions, rope)
        k = rotate(self._project(layer, x, "k", attention.num_kv_heads), positions, rope)
        v = self._project(layer, x, "v", attention.num_kv_heads)
        keys, values = self._kv[layer]
        for i, seq in enumerate(batch.seqs):
            rows = slice(bounds[i], bounds[i + 1])
            slots = self._slots(layer, int(seq), positions[rows])
            law(bool(np.all(slots >= self._page_size)), "sequence %d would write to the null page", seq)
            keys[slots], values[slots] = k[rows], v[rows]
        mixed = np.empty_like(q)
        for i, seq in enumerate(batch.seqs):
            for row in range(int(bounds[i]), int(bounds[i + 1])):
                mixed[row] = self._attend(layer, int(seq), int(positions[row]), q[row])
        return multiply(mixed.reshape(len(x), -1), self._matrices[f"layers.{layer}.o"])

    def _slots(self, layer: int, seq: int, positions: I64) -> I64:
        """Where the KV of these positions lies in the layer's arrays."""
        pages = self._tables[self._pools[layer]][seq, positions // self._page_size]
        return np.asarray(pages.astype(np.int64) * self._page_size + positions % self._page_size)

    def _attend(self, layer: int, seq: int, position: int, query: F32) -> F32:
        """One row's attention over what it sees: `[max(0, position - window + 1), position]`, or all before it."""
        attention = self._config.attention
        first = max(0, position - attention.sliding_window + 1) if attention.layer_slides[layer] else 0
        slots = self._slots(layer, seq, np.arange(first, position + 1))
        law(bool(np.all(slots >= self._page_size)), "sequence %d reads a page that was let go", seq)
        keys, values = (part[slots] for part in self._kv[layer])
        mixed = np.empty_like(query)
        group = attention.num_heads // attention.num_kv_heads
        for head in range(attention.num_heads):
            scores = (keys[:, head // group] @ query[head]) * np.float32(attention.query_scale)
            scores = soft_cap(scores, attention.logit_softcap)
            weights = np.exp(scores - scores.max())
            mixed[head] = (weights @ values[:, head // group]) / weights.sum()
        return mixed
