"""A GGUF file as a checkpoint: metadata to configuration, stored names to ours, rows of Q and K put back in order.

What GGUF does not say and this module knows: the converter of llama permutes the rows of Q and K for a rotation of
neighbouring pairs; Gemma 3's file has neither its layer pattern (every sixth layer attends fully) nor the rotary base
of its sliding layers (10,000); Gemma's norm weights already carry their + 1. Knows nothing of packing.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ModelError
from sojourn.models.checkpoint import Checkpoint
from sojourn.models.config import Activation, AttentionConfig, ModelConfig
from sojourn.models.gguf_file import GgufFile, read_gguf
from sojourn.models.rope import Divided, Linear, Scaling, Yarn, make_rope
from sojourn.models.tensors import find_tensors
from sojourn.models.tokenizer_gguf import tokenizer_from_gguf

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")  # Mistral's files say llama
GEMMA3_PATTERN = 6  # every sixth layer has full attention
GEMMA3_LOCAL_BASE = 10000.0
_GEMMA3_27B_LAYERS = 62  # the one size whose query scale is not head_dim ** -0.5
_ROPE_FREQS = "rope_freqs.weight"

_TABLES = {"embed": "token_embd.weight", "head": "output.weight", "final_norm": "output_norm.weight"}
_LAYER = {
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "attn_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "post_ffn_norm": "post_ffw_norm.weight",
}


def load_gguf(path: Path) -> Checkpoint:
    """Read the index of a GGUF file; weights stay in the mapped file. Raises ModelError naming file and field."""
    file = read_gguf(path)
    config = read_config(file)
    matrices, vectors = find_tensors(path, config, file.tensors, _stored_name, lambda name: name == _ROPE_FREQS)
    if config.architecture == "llama":
        for layer in range(config.num_layers):
            for part, heads in (("q", config.attention.num_heads), ("k", config.attention.num_kv_heads)):
                order = unpermuted_rows(heads, config.attention.head_dim)
                name = f"layers.{layer}.{part}"
                matrices[name] = dataclasses.replace(matrices[name], row_order=order)
                if config.attention.qkv_bias:
                    vectors[f"{name}_bias"] = vectors[f"{name}_bias"][order]
    try:
        tokenizer_json, text = tokenizer_from_gguf(file.fields)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    license_name = file.fields.get("general.license", "not stated")
    return Checkpoint(config, matrices, vectors, str(license_name), tokenizer_json, text)


def unpermuted_rows(num_heads: int, head_dim: int) -> NDArray[np.intp]:
    """Stored row of each row: inside a head GGUF has (pair, half), rotation by halves wants (half, pair)."""
    stored = np.arange(num_heads * head_dim, dtype=np.intp).reshape(num_heads, head_dim // 2, 2)
    return stored.swapaxes(1, 2).reshape(-1)


def read_config(file: GgufFile) -> ModelConfig:
    architecture = file.fields.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ModelError(
            f"{file.path}: general.architecture is {architecture!r}, which is not supported; "
            f"{', '.join(ARCHITECTURES)} are (Mistral's and SmolLM2's files say llama)"
        )
    fields = _Fields(file, architecture)
    if experts := fields.integer("expert_count", 0):
        raise ModelError(
            f"{file.path}: {architecture}.expert_count is {experts}: mixtures of experts are not supported"
        )
    gemma = architecture == "gemma3"
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    hidden = fields.integer("embedding_length")
    return ModelConfig(
        architecture=architecture,
        name=str(file.fields.get("general.name", file.path.stem)),
        vocab_size=embed.shape[0],
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        context_length=fields.integer("context_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        activation=Activation.GELU_TANH if gemma else Activation.SILU,
        attention=_read_attention(file, fields, hidden),
        tied_embeddings="output.weight" not in file.tensors,
        post_norms=gemma,
        embedding_scale=float(np.float32(hidden**0.5)) if gemma else 1.0,
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Fields:
    """Typed access to `{architecture}.{name}`; an error names the file and the field."""

    file: GgufFile
    architecture: str

    def get(self, name: str) -> object | None:
        return self.file.fields.get(f"{self.architecture}.{name}")

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]  # one entry per layer, all alike
        if isinstance(value, bool) or not isinstance(value, int | float):
            problem = "is missing" if value is None else f"is {value!r:.60}, not one number"
            raise ModelError(f"{self.file.path}: {self.architecture}.{name} {problem}")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value != int(value) or value < 0:
            raise ModelError(f"{self.file.path}: {self.architecture}.{name} is {value}, not a count")
        return int(value)


def _read_attention(file: GgufFile, fields: _Fields, hidden: int) -> AttentionConfig:
    architecture = fields.architecture
    gemma = architecture == "gemma3"
    num_heads = fields.integer("attention.head_count")
    num_kv_heads = fields.integer("attention.head_count_kv", num_heads)
    if not num_heads or not num_kv_heads or num_heads % num_kv_heads:
        raise ModelError(
            f"{file.path}: {architecture}.attention.head_count {num_heads} is not a multiple of head_count_kv {num_kv_heads}"
        )
    head_dim = fields.integer("attention.key_length", hidden // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(name, head_dim) != head_dim:
            raise ModelError(
                f"{file.path}: {architecture}.{name} is {fields.integer(name)}; only {head_dim}, the key length, works"
            )
    base = fields.number("rope.freq_base", 10000.0)
    local_base = fields.number("rope.freq_base_swa", GEMMA3_LOCAL_BASE)
    slides = _sliding_layers(fields)
    scale_dim = hidden // num_heads if gemma and len(slides) == _GEMMA3_27B_LAYERS else head_dim
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        query_scale=scale_dim**-0.5,
        rope=make_rope(base, head_dim, _read_scaling(file, fields, head_dim)),
        rope_sliding=make_rope(local_base, head_dim) if gemma else None,
        sliding_window=fields.integer("attention.sliding_window", 0) if any(slides) else 0,
        layer_slides=slides,
        qk_norm=architecture in ("qwen3", "gemma3"),
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        logit_softcap=fields.number("attn_logit_softcapping", 0.0),
    )


def _sliding_layers(fields: _Fields) -> tuple[bool, ...]:
    """Which layers slide: said by the file, else Gemma's pattern; other models slide everywhere or nowhere."""
    num_layers = fields.integer("block_count")
    if not fields.integer("attention.sliding_window", 0):
        return (False,) * num_layers
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != num_layers:
            raise ModelError(
                f"{fields.file.path}: {fields.architecture}.attention.sliding_window_pattern has {len(pattern)} entries "
                f"for {num_layers} layers"
            )
        return tuple(bool(entry) for entry in pattern)
    if pattern is None and fields.architecture != "gemma3":
        return (True,) * num_layers
    period = fields.integer("attention.sliding_window_pattern", GEMMA3_PATTERN)
    return tuple(period == 0 or (layer + 1) % period != 0 for layer in range(num_layers))


def _read_scaling(file: GgufFile, fields: _Fields, head_dim: int) -> Scaling | None:
    if freqs := file.tensors.get(_ROPE_FREQS):
        factors = tuple(float(factor) for factor in freqs.values())
        if len(factors) != head_dim // 2:
            raise ModelError(f"{file.path}: tensor {_ROPE_FREQS} has {len(factors)} entries, not {head_dim // 2}")
        return Divided(factors)
    kind = fields.get("rope.scaling.type")
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    if kind in (None, "none", "linear"):
        return Linear(factor) if factor not in (0.0, 1.0) and kind != "none" else None
    if kind == "yarn":
        return Yarn(factor, fields.integer("rope.scaling.original_context_length"))
    raise ModelError(
        f"{file.path}: {fields.architecture}.rope.scaling.type is {kind!r}, which is not supported; none, linear, yarn are"
    )


def _stored_name(name: str) -> str:
    if name in _TABLES:
        return _TABLES[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{_LAYER[part]}"
