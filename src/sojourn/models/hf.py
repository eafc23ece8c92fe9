"""A Hugging Face model directory as a checkpoint: config.json, *.safetensors (one file or an index), tokenizer.json.

Norm weights of Gemma are stored without their + 1 here; it is added. Knows nothing of packing.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sojourn.core.errors import ModelError
from sojourn.models.checkpoint import Checkpoint, StoredTensor
from sojourn.models.hf_config import open_config, read_config
from sojourn.models.safetensors import read_safetensors
from sojourn.models.tensors import find_tensors
from sojourn.models.tokenizer_directory import tokenizer_from_directory

_INDEX = "model.safetensors.index.json"
_EMBED = "embed_tokens.weight"
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
_IGNORED_PARTS = ("vision_tower.", "multi_modal_projector.", "rotary_emb.inv_freq")

_LAYER = {
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
}
_GEMMA_LAYER = _LAYER | {
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_ffn_norm": "post_feedforward_layernorm.weight",
}


def load_directory(path: Path) -> Checkpoint:
    """Read a directory's configuration and headers; weights stay in the mapped files. Raises ModelError."""
    config_path = path / "config.json"
    if not config_path.is_file():
        others = sorted(other.name for other in path.glob("*.gguf"))
        hint = f"give one of its files: {', '.join(others[:5])}" if others else "a model directory has one"
        raise ModelError(f"{config_path} is missing: {hint}")
    raw = _read_json(config_path)
    architecture, file = open_config(config_path, raw)
    stored = read_safetensors(weight_files(path))
    prefix = _prefix(path, stored)
    head = next((name for name in _HEADS if name in stored), _HEADS[0])
    has_bias = f"{prefix}layers.0.{_LAYER['q_bias']}" in stored
    config = read_config(architecture, file, path.resolve().name, has_head=head in stored, has_qkv_bias=has_bias)
    layer_names = _GEMMA_LAYER if architecture == "gemma3" else _LAYER

    def stored_name(name: str) -> str:
        match name.split("."):
            case ["head"]:
                return head
            case ["embed"]:
                return prefix + _EMBED
            case ["final_norm"]:
                return f"{prefix}norm.weight"
            case [_, layer, part]:
                return f"{prefix}layers.{layer}.{layer_names[part]}"
        raise KeyError(name)

    def is_ignored(name: str) -> bool:
        return any(part in name for part in _IGNORED_PARTS) or (name == head and config.tied_embeddings)

    matrices, vectors = find_tensors(path, config, stored, stored_name, is_ignored)
    if architecture == "gemma3":
        vectors = {name: vector + np.float32(1) if "norm" in name else vector for name, vector in vectors.items()}
    tokenizer_json, text = tokenizer_from_directory(path)
    return Checkpoint(config, matrices, vectors, "see the model's card", tokenizer_json, text)


def weight_files(path: Path) -> list[Path]:
    """The safetensors files that hold the model, by the index where there is one."""
    index = path / _INDEX
    if index.is_file():
        mapping = _read_json(index).get("weight_map")
        if not isinstance(mapping, dict):
            raise ModelError(f"{index}: weight_map is missing")
        files = [path / str(name) for name in sorted(set(mapping.values()))]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise ModelError(
                f"{index}: {len(missing)} of {len(files)} files are missing, first {missing[0]}; fetch them"
            )
        return files
    found = sorted(path.glob("*.safetensors"))
    if len(found) != 1 and (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    if len(found) != 1:
        problem = f"{len(found)} *.safetensors files and no {_INDEX}" if found else "no *.safetensors file"
        raise ModelError(
            f"{path}: {problem}; save the model with save_pretrained (safe serialisation), .bin is not read"
        )
    return found


def _prefix(path: Path, stored: Mapping[str, StoredTensor]) -> str:
    """What stands before `embed_tokens.weight`: model., language_model.model., model.language_model., or nothing."""
    found = [name.removesuffix(_EMBED) for name in stored if name.endswith(_EMBED)]
    if len(found) != 1:
        raise ModelError(
            f"{path}: {'no' if not found else 'more than one'} tensor {_EMBED}; not a language model's weights"
        )
    return found[0]


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: is not a JSON object")
    return raw
