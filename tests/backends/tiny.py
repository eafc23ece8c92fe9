"""Tiny random models in the core's layout, and batches for them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sojourn.backends.protocol import Batch, SamplingBatch
from sojourn.models.config import Activation, AttentionConfig, ModelConfig, Rope
from sojourn.models.packed import GROUP, ROWS_PER_BLOCK, MatrixKind, PackedMatrix, PackedModel

VOCAB = 90  # not a multiple of 16: the last block of the head is padded


def inv_freq(head_dim: int, base: float) -> tuple[float, ...]:
    return tuple((base ** -(np.arange(0, head_dim, 2) / head_dim)).tolist())


def llama(context_length: int = 2048) -> ModelConfig:
    """Grouped queries, SwiGLU, untied head."""
    attention = AttentionConfig(
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        query_scale=0.25,
        rope=Rope(inv_freq(16, 10000.0)),
        rope_sliding=None,
        sliding_window=0,
        layer_slides=(False, False),
    )
    return ModelConfig(
        architecture="llama",
        name="tiny",
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        context_length=context_length,
        rms_norm_eps=1e-5,
        activation=Activation.SILU,
        attention=attention,
        tied_embeddings=False,
    )


def gemma() -> ModelConfig:
    """Sliding windows, norms everywhere, GeGLU, soft caps, tied head, one KV head."""
    base = llama()
    attention = replace(
        base.attention,
        num_heads=4,
        num_kv_heads=1,
        head_dim=48,
        query_scale=48**-0.5,
        rope=Rope(inv_freq(48, 1e6)),
        rope_sliding=Rope(inv_freq(48, 1e4)),
        sliding_window=40,
        layer_slides=(True, False, True),
        qk_norm=True,
        logit_softcap=20.0,
    )
    return replace(
        base,
        architecture="gemma3",
        num_layers=3,
        activation=Activation.GELU_TANH,
        attention=attention,
        tied_embeddings=True,
        post_norms=True,
        embedding_scale=8.0,
        logit_softcap=15.0,
    )


def qwen2() -> ModelConfig:
    """Biases on q, k and v; as many KV heads as heads; RoPE with a factor."""
    base = llama()
    rope = Rope(inv_freq(16, 1e6), attention_factor=1.1)
    return replace(
        base, architecture="qwen2", attention=replace(base.attention, num_kv_heads=6, rope=rope, qkv_bias=True)
    )


def random_matrix(rng: np.random.Generator, kind: MatrixKind, rows: int, cols: int, deviation: float) -> PackedMatrix:
    blocks = -(-rows // ROWS_PER_BLOCK)
    if kind is MatrixKind.F32:
        values = rng.normal(0, deviation, (blocks, cols, ROWS_PER_BLOCK)).astype(np.float32)
        return PackedMatrix(kind, rows, cols, values.reshape(-1))
    groups = cols // GROUP
    quants = rng.integers(0, 256, blocks * ROWS_PER_BLOCK * cols // (1 if kind is MatrixKind.Q8 else 2), dtype=np.uint8)
    spread = {MatrixKind.Q8: 74.0, MatrixKind.Q4: 4.6, MatrixKind.Q4M: 4.6}[kind]
    scales = (deviation / spread * rng.uniform(0.5, 1.5, blocks * groups * ROWS_PER_BLOCK)).astype(np.float16)
    mins = (scales * np.float16(-7.5)) if kind is MatrixKind.Q4M else None
    return PackedMatrix(kind, rows, cols, quants, scales, mins)


def random_model(config: ModelConfig, kind: MatrixKind, seed: int = 0) -> PackedModel:
    rng = np.random.default_rng(seed)
    attention = config.attention
    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    shapes = {"q": (query, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, query)}
    shapes |= {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    vectors = {"attn_norm": hidden, "ffn_norm": hidden}
    vectors |= {"q_norm": attention.head_dim, "k_norm": attention.head_dim} if attention.qk_norm else {}
    vectors |= {"q_bias": query, "k_bias": kv, "v_bias": kv} if attention.qkv_bias else {}
    vectors |= {"post_attn_norm": hidden, "post_ffn_norm": hidden} if config.post_norms else {}

    matrices = {"embed": random_matrix(rng, kind, config.vocab_size, hidden, 1.0)}
    if not config.tied_embeddings:
        matrices["head"] = random_matrix(rng, kind, config.vocab_size, hidden, 0.3)
    for layer in range(config.num_layers):
        for name, (rows, cols) in shapes.items():
            matrices[f"layers.{layer}.{name}"] = random_matrix(rng, kind, rows, cols, 1.5 * cols**-0.5)
    floats = {"final_norm": rng.normal(1, 0.2, hidden).astype(np.float32)}
    for layer in range(config.num_layers):
        for name, size in vectors.items():
            center = 0.0 if name.endswith("bias") else 1.0
            floats[f"layers.{layer}.{name}"] = rng.normal(center, 0.2, size).astype(np.float32)
    return PackedModel(config, matrices, floats)


def batch_of(
    parts: Sequence[tuple[int, int, Sequence[int]]],
    edits: Sequence[tuple[int, int, int, int]] = (),
    logit_rows: Sequence[int] | None = None,
    sampling: SamplingBatch | None = None,
) -> Batch:
    """A step of (sequence, start, tokens) parts; logits of every row unless told otherwise."""
    tokens = [token for _, _, part in parts for token in part]
    rows = range(len(tokens)) if logit_rows is None else logit_rows
    return Batch(
        tokens=np.array(tokens, dtype=np.int32),
        seqs=np.array([seq for seq, _, _ in parts], dtype=np.int32),
        starts=np.array([start for _, start, _ in parts], dtype=np.int32),
        lengths=np.array([len(part) for _, _, part in parts], dtype=np.int32),
        table_edits=np.array(edits, dtype=np.int32).reshape(-1, 4),
        logit_rows=np.array(rows, dtype=np.int32),
        sampling=sampling,
        want_logits=True,
    )
