"""Tiny random models written as GGUF files and as Hugging Face directories, from one set of weights.

Both forms hold the same numbers, so a loader is right when it gives them back under the names of `packed.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import tokenizers
from numpy.typing import NDArray
from safetensors.numpy import save_file

Array = NDArray[np.float32]
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
TOKENS = [*ALPHABET, "ab", "<|im_end|>"]  # 258: not a multiple of 16
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER = 4, 2, 16, 64, 96
LAYERS = {"llama": 2, "mistral": 2, "qwen2": 2, "qwen3": 2, "gemma3": 7}
CONTEXT = 128


@dataclass(frozen=True)
class TinyModel:
    """`weights` under the names of packed.py, in the order of rotation by halves, Gemma's norms with their + 1."""

    architecture: str
    weights: Mapping[str, Array]

    @property
    def layers(self) -> int:
        return LAYERS[self.architecture]


def tiny_model(architecture: str, *, tied: bool = False, seed: int = 0) -> TinyModel:
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"embed": (len(TOKENS), HIDDEN), "final_norm": (HIDDEN,)}
    if not tied:
        shapes["head"] = (len(TOKENS), HIDDEN)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer: dict[str, tuple[int, ...]] = {
        "q": (queries, HIDDEN),
        "k": (keys, HIDDEN),
        "v": (keys, HIDDEN),
        "o": (HIDDEN, queries),
        "gate": (INNER, HIDDEN),
        "up": (INNER, HIDDEN),
        "down": (HIDDEN, INNER),
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
    }
    if architecture == "qwen2":
        layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if architecture in ("qwen3", "gemma3"):
        layer |= {"q_norm": (HEAD_DIM,), "k_norm": (HEAD_DIM,)}
    if architecture == "gemma3":
        layer |= {"post_attn_norm": (HIDDEN,), "post_ffn_norm": (HIDDEN,)}
    for index in range(LAYERS[architecture]):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return TinyModel(architecture, {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})


GGUF_NAMES = {
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
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attn_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "post_ffn_norm": "post_ffw_norm.weight",
    "embed": "token_embd.weight",
    "head": "output.weight",
    "final_norm": "output_norm.weight",
}


def permuted(weight: Array, heads: int) -> Array:
    """Rows of Q or K as llama's converter stores them, by its own formula."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


@dataclass(frozen=True)
class GgufOptions:
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32  # of matrices
    fields: Mapping[str, object] = field(default_factory=dict)  # written after the usual ones; {arch} is filled in
    drop_tensors: tuple[str, ...] = ()
    extra_tensors: Mapping[str, Array] = field(default_factory=dict)
    drop_fields: tuple[str, ...] = ()


def write_gguf(path: Path, model: TinyModel, options: GgufOptions | None = None) -> Path:
    chosen = options or GgufOptions()
    architecture = "llama" if model.architecture == "mistral" else model.architecture
    writer = gguf.GGUFWriter(path, architecture)
    fields: dict[str, object] = {
        "general.name": f"tiny {model.architecture}",
        "{arch}.block_count": model.layers,
        "{arch}.context_length": CONTEXT,
        "{arch}.embedding_length": HIDDEN,
        "{arch}.feed_forward_length": INNER,
        "{arch}.attention.head_count": HEADS,
        "{arch}.attention.head_count_kv": KV_HEADS,
        "{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        "{arch}.attention.key_length": HEAD_DIM,
        "{arch}.rope.freq_base": 50000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 1) + [3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": len(TOKENS) - 1,
    }
    if model.architecture in ("gemma3", "mistral"):
        fields["{arch}.attention.sliding_window"] = 8
    fields |= chosen.fields
    for name, value in fields.items():
        if name not in chosen.drop_fields:
            _add_field(writer, name.replace("{arch}", architecture), value)
    for name, weight in model.weights.items():
        part = name.rpartition(".")[2]
        stored_name = f"blk.{name.split('.')[1]}.{GGUF_NAMES[part]}" if name.startswith("layers.") else GGUF_NAMES[part]
        if stored_name in chosen.drop_tensors:
            continue
        stored = weight
        if architecture == "llama" and part in ("q", "k", "q_bias", "k_bias"):
            stored = permuted(weight, HEADS if part[0] == "q" else KV_HEADS)
        if weight.ndim == 2 and chosen.quantization is not gguf.GGMLQuantizationType.F32:
            data = gguf.quantize(stored, chosen.quantization)
            writer.add_tensor(stored_name, data, raw_dtype=chosen.quantization)
        else:
            writer.add_tensor(stored_name, np.ascontiguousarray(stored))
    for name, weight in chosen.extra_tensors.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_field(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case list():
            writer.add_array(name, value)
        case _:
            raise TypeError(name)


HF_NAMES = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "attn_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "embed": "embed_tokens.weight",
    "final_norm": "norm.weight",
}
GEMMA_NAMES = HF_NAMES | {
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_ffn_norm": "post_feedforward_layernorm.weight",
}


def hf_tensors(model: TinyModel, prefix: str = "model.") -> dict[str, Array]:
    """The weights under transformers' names and in its conventions."""
    names = GEMMA_NAMES if model.architecture == "gemma3" else HF_NAMES
    tensors: dict[str, Array] = {}
    for name, weight in model.weights.items():
        part = name.rpartition(".")[2]
        if part == "head":
            tensors["lm_head.weight"] = weight
            continue
        layer = f"layers.{name.split('.')[1]}." if name.startswith("layers.") else ""
        is_gemma_norm = model.architecture == "gemma3" and "norm" in part
        tensors[f"{prefix}{layer}{names[part]}"] = weight - np.float32(1) if is_gemma_norm else weight
    return tensors


def hf_config(model: TinyModel) -> dict[str, object]:
    config: dict[str, object] = {
        "model_type": "gemma3_text" if model.architecture == "gemma3" else model.architecture,
        "vocab_size": len(TOKENS),
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": model.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 50000.0,
        "tie_word_embeddings": "head" not in model.weights,
    }
    match model.architecture:
        case "gemma3":
            config |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": HEAD_DIM, "sliding_window": 8}
        case "mistral":
            config |= {"hidden_act": "silu", "sliding_window": 8}
        case _:
            config |= {"hidden_act": "silu", "sliding_window": None}
    return config


def write_directory(path: Path, model: TinyModel, **changes: object) -> Path:
    """config.json, model.safetensors and a tokenizer; `changes` replace fields of the config, None drops one."""
    path.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in (hf_config(model) | changes).items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    save_file(hf_tensors(model), path / "model.safetensors")
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    inner = tokenizers.models.BPE({token: i for i, token in enumerate(TOKENS[:-1])}, [("a", "b")])
    tokenizer = tokenizers.Tokenizer(inner)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
