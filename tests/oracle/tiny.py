"""Tiny checkpoints of each architecture, written without torch: transformers' own configuration and names, weights by seed.

`tests/data/oracle/tiny/NAME.json` holds what transformers wrote (see `make_references.py`): configuration and shapes.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from sojourn.models.hf import load_directory
from sojourn.models.packed import PackedModel
from sojourn.models.packing import Weights, pack
from sojourn.models.plan import make_plan

DATA = Path(__file__).parents[1] / "data" / "oracle"
VOCABULARY = 160
LENGTH = 300  # of a prompt: more than six windows of 48
POSITIONS = [0, 1, 46, 47, 48, 49, 95, 96, 97, 150, 200, 250, 299]  # whose logits are stored: edges of windows
NAMES = ("llama", "llama_tied", "llama3_rope", "mistral", "qwen2", "qwen3", "gemma3")


def prompt(name: str) -> list[int]:
    return [int(token) for token in np.random.default_rng(len(name)).integers(0, VOCABULARY, LENGTH)]


def _values(rng: np.random.Generator, shape: list[int]) -> NDArray[np.float32]:
    """Vectors are norms and biases: away from their neutral values, which would hide a mistake."""
    spread = 0.6 if len(shape) == 1 else 0.5
    return ((rng.random(shape) - 0.5) * spread).astype(np.float32)


def write_checkpoint(name: str, folder: Path) -> None:
    """config.json, model.safetensors, tokenizer.json."""
    described = json.loads((DATA / "tiny" / f"{name}.json").read_text())
    rng = np.random.default_rng(sum(name.encode()))
    weights = {}
    for parameter, shape in described["shapes"].items():
        is_scale = parameter.endswith("norm.weight") and described["config"]["model_type"] != "gemma3_text"
        weights[parameter] = _values(rng, shape) + np.float32(is_scale)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(described["config"]))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:VOCABULARY]
    tokenizer = Tokenizer(BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def load_f32(folder: Path) -> PackedModel:
    checkpoint = load_directory(folder)
    kinds = make_plan(checkpoint, Weights.F32).kinds
    matrices = {name: pack(matrix, kinds[name]) for name, matrix in checkpoint.matrices.items()}
    return PackedModel(checkpoint.config, matrices, checkpoint.vectors)
