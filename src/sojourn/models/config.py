"""What a model is, as numbers. Architectures are configurations, not classes: the core reads only this.

Knows no file format: `gguf.py` and `hf_config.py` produce it, `manifest.py` stores it.
"""

from dataclasses import dataclass
from enum import StrEnum


class Activation(StrEnum):
    SILU = "silu"  # SwiGLU
    GELU_TANH = "gelu_tanh"  # GeGLU, the tanh approximation


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of one kind of layer: `inv_freq` has head_dim / 2 entries, any scaling already applied.

    Rotation pairs dimension i with i + head_dim / 2 (the loaders undo GGUF's llama permutation).
    `attention_factor` multiplies cos and sin (YaRN); 1 elsewhere.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_scale: float  # multiplies q . k; usually head_dim ** -0.5
    rope: Rope  # full-attention layers
    rope_sliding: Rope | None  # sliding-window layers where they differ (Gemma 3: base 10,000)
    sliding_window: int  # tokens a sliding layer attends to, the new one included; 0 when no layer slides
    layer_slides: tuple[bool, ...]  # one per layer
    qk_norm: bool = False  # RMSNorm over head_dim on q and k, before RoPE
    qkv_bias: bool = False
    logit_softcap: float = 0.0  # tanh soft cap of attention scores; 0 is off


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """RMSNorm weights are stored as multiplied (Gemma's +1 already applied). Lengths in tokens."""

    architecture: str  # llama | mistral | qwen2 | qwen3 | gemma3
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    context_length: int
    rms_norm_eps: float
    activation: Activation
    attention: AttentionConfig
    tied_embeddings: bool
    post_norms: bool = False  # norms after attention and after the MLP, before the residual add (Gemma)
    embedding_scale: float = 1.0  # Gemma: sqrt(hidden_size)
    logit_softcap: float = 0.0  # tanh soft cap of the final logits; 0 is off
