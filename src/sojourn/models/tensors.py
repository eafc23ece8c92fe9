"""Which tensors a configuration has, with their shapes, and finding each of them in a file.

A file must have every tensor the configuration asks for, in its shape, and none that it does not know: an unknown one
(a bias, an expert) would be a model that this code computes wrongly.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ModelError
from sojourn.models.checkpoint import SourceMatrix, StoredTensor
from sojourn.models.config import ModelConfig


def matrix_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    attention, hidden, inner = config.attention, config.hidden_size, config.intermediate_size
    queries = attention.num_heads * attention.head_dim
    keys = attention.num_kv_heads * attention.head_dim
    shapes = {"embed": (config.vocab_size, hidden)}
    if not config.tied_embeddings:
        shapes["head"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        shapes |= {
            f"layers.{layer}.q": (queries, hidden),
            f"layers.{layer}.k": (keys, hidden),
            f"layers.{layer}.v": (keys, hidden),
            f"layers.{layer}.o": (hidden, queries),
            f"layers.{layer}.gate": (inner, hidden),
            f"layers.{layer}.up": (inner, hidden),
            f"layers.{layer}.down": (hidden, inner),
        }
    return shapes


def vector_sizes(config: ModelConfig) -> dict[str, int]:
    attention, hidden = config.attention, config.hidden_size
    keys = attention.num_kv_heads * attention.head_dim
    per_layer = {"attn_norm": hidden, "ffn_norm": hidden}
    if attention.qkv_bias:
        per_layer |= {"q_bias": attention.num_heads * attention.head_dim, "k_bias": keys, "v_bias": keys}
    if attention.qk_norm:
        per_layer |= {"q_norm": attention.head_dim, "k_norm": attention.head_dim}
    if config.post_norms:
        per_layer |= {"post_attn_norm": hidden, "post_ffn_norm": hidden}
    sizes = {f"layers.{layer}.{name}": size for layer in range(config.num_layers) for name, size in per_layer.items()}
    return sizes | {"final_norm": hidden}


def find_tensors(
    path: Path,
    config: ModelConfig,
    stored: Mapping[str, StoredTensor],
    stored_name: Callable[[str], str],
    is_ignored: Callable[[str], bool],
) -> tuple[dict[str, SourceMatrix], dict[str, NDArray[np.float32]]]:
    """(matrices, vectors) under the names of `packed.py`. Raises ModelError for a missing, misshapen or unknown tensor."""
    matrices: dict[str, SourceMatrix] = {}
    vectors: dict[str, NDArray[np.float32]] = {}
    used: set[str] = set()
    for name, shape in matrix_shapes(config).items():
        tensor = _find(path, config, stored, stored_name(name), shape)
        matrices[name] = SourceMatrix(tensor.name, tensor.encoding, shape[1], tensor.raw.reshape(shape[0], -1))
        used.add(tensor.name)
    for name, size in vector_sizes(config).items():
        tensor = _find(path, config, stored, stored_name(name), (size,))
        vectors[name] = tensor.values()
        used.add(tensor.name)
    unknown = sorted(name for name in stored if name not in used and not is_ignored(name))
    if unknown:
        raise ModelError(
            f"{path}: tensor {unknown[0]} ({len(unknown)} such) is not part of architecture {config.architecture} "
            f"as it is known here; models with experts, output biases or adapters are not supported"
        )
    return matrices, vectors


def _find(
    path: Path, config: ModelConfig, stored: Mapping[str, StoredTensor], name: str, shape: tuple[int, ...]
) -> StoredTensor:
    tensor = stored.get(name)
    if tensor is None:
        raise ModelError(f"{path}: tensor {name} is missing, which architecture {config.architecture} needs")
    if tensor.shape != shape:
        raise ModelError(f"{path}: tensor {name} has shape {tensor.shape}, the configuration says {shape}")
    return tensor
