"""GGUF files and Hugging Face directories of every architecture give back the weights and numbers they were made of."""

import dataclasses
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.support.model_files import (
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    TOKENS,
    GgufOptions,
    TinyModel,
    hf_tensors,
    tiny_model,
    write_directory,
    write_gguf,
)

from sojourn.models.checkpoint import Checkpoint
from sojourn.models.config import Activation, ModelConfig
from sojourn.models.gguf import load_gguf
from sojourn.models.hf import load_directory
from sojourn.models.packed import MatrixKind
from sojourn.models.packing import pack, unpack
from sojourn.models.rope import Llama3, Yarn, make_rope

ARCHITECTURES = list(LAYERS)


def assert_weights(checkpoint: Checkpoint, model: TinyModel, *, tolerance: float = 0.0) -> None:
    assert checkpoint.matrices.keys() | checkpoint.vectors.keys() == model.weights.keys()
    for name, matrix in checkpoint.matrices.items():
        np.testing.assert_allclose(
            unpack(pack(matrix, MatrixKind.F32)), model.weights[name], atol=tolerance, rtol=tolerance
        )
    for name, vector in checkpoint.vectors.items():
        np.testing.assert_allclose(vector, model.weights[name], atol=max(tolerance, 1e-6), rtol=tolerance)


def same_numbers(config: ModelConfig) -> ModelConfig:
    """GGUF calls Mistral llama, and names come from elsewhere."""
    architecture = "llama" if config.architecture == "mistral" else config.architecture
    return dataclasses.replace(config, name="", architecture=architecture)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_forms_hold_the_same_model(architecture: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_model(architecture, tied=tied)
    from_gguf = load_gguf(write_gguf(tmp_path / "tiny.gguf", model))
    from_directory = load_directory(write_directory(tmp_path / "tiny", model))
    assert_weights(from_gguf, model)
    assert_weights(from_directory, model)
    assert same_numbers(from_gguf.config) == same_numbers(from_directory.config)
    assert from_gguf.config.tied_embeddings is tied
    assert from_gguf.text.eos_ids == from_directory.text.eos_ids == (len(TOKENS) - 1,)
    assert from_gguf.parameters == sum(weight.size for weight in model.weights.values())


def test_gemma3_in_numbers(tmp_path: Path) -> None:
    """What Gemma's GGUF does not say."""
    config = load_gguf(write_gguf(tmp_path / "tiny.gguf", tiny_model("gemma3", tied=True))).config
    attention = config.attention
    assert attention.layer_slides == (True,) * 5 + (False, True)
    assert attention.sliding_window == 8
    assert attention.rope_sliding == make_rope(10000.0, HEAD_DIM)
    assert attention.rope == make_rope(50000.0, HEAD_DIM)
    assert attention.query_scale == HEAD_DIM**-0.5
    assert attention.qk_norm
    assert config.post_norms
    assert config.embedding_scale == HIDDEN**0.5
    assert config.activation is Activation.GELU_TANH


def test_mistral_slides_everywhere_and_llama_nowhere(tmp_path: Path) -> None:
    mistral = load_gguf(write_gguf(tmp_path / "m.gguf", tiny_model("mistral"))).config.attention
    llama = load_gguf(write_gguf(tmp_path / "l.gguf", tiny_model("llama"))).config.attention
    assert mistral.layer_slides == (True, True)
    assert (llama.layer_slides, llama.sliding_window) == ((False, False), 0)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_quantised_rows_are_unpermuted_too(architecture: str, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    options = GgufOptions(quantization=gguf.GGMLQuantizationType.Q8_0)
    assert_weights(load_gguf(write_gguf(tmp_path / "tiny.gguf", model, options)), model, tolerance=0.04)


def test_llama3_factors_travel_as_a_tensor(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    options = GgufOptions(extra_tensors={"rope_freqs.weight": factors})
    config = load_gguf(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), options)).config
    want = np.array(make_rope(50000.0, HEAD_DIM).inv_freq) / factors
    np.testing.assert_allclose(config.attention.rope.inv_freq, want, rtol=1e-6)


def test_scaling_fields_of_gguf(tmp_path: Path) -> None:
    linear = {"{arch}.rope.scaling.type": "linear", "{arch}.rope.scaling.factor": 4.0}
    config = load_gguf(write_gguf(tmp_path / "a.gguf", tiny_model("gemma3"), GgufOptions(fields=linear))).config
    plain = np.array(make_rope(50000.0, HEAD_DIM).inv_freq)
    np.testing.assert_allclose(config.attention.rope.inv_freq, plain / 4, rtol=1e-6)
    assert config.attention.rope_sliding == make_rope(10000.0, HEAD_DIM)  # only full layers are scaled
    yarn = linear | {"{arch}.rope.scaling.type": "yarn", "{arch}.rope.scaling.original_context_length": 32}
    config = load_gguf(write_gguf(tmp_path / "b.gguf", tiny_model("qwen2"), GgufOptions(fields=yarn))).config
    assert config.attention.rope == make_rope(50000.0, HEAD_DIM, Yarn(4.0, 32))


def test_rotary_fields_of_transformers_5(tmp_path: Path) -> None:
    scaled = {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0}
    parameters = {"full_attention": scaled, "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0}}
    gemma = write_directory(tmp_path / "g", tiny_model("gemma3"), rope_theta=None, rope_parameters=parameters)
    attention = load_directory(gemma).config.attention
    np.testing.assert_allclose(attention.rope.inv_freq, np.array(make_rope(50000.0, HEAD_DIM).inv_freq) / 8, rtol=1e-6)
    assert attention.rope_sliding == make_rope(7000.0, HEAD_DIM)
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 50000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    want = make_rope(50000.0, HEAD_DIM, Llama3(8.0, 1.0, 4.0, 64))
    new = write_directory(tmp_path / "n", tiny_model("llama"), rope_theta=None, rope_parameters=llama3)
    assert load_directory(new).config.attention.rope == want
    old = write_directory(tmp_path / "o", tiny_model("llama"), rope_scaling=llama3)
    assert load_directory(old).config.attention.rope == want


def test_layers_that_slide_by_config(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    named = write_directory(tmp_path / "a", tiny_model("mistral"), layer_types=kinds)
    assert load_directory(named).config.attention.layer_slides == (True, False)
    off = write_directory(tmp_path / "b", tiny_model("qwen2"), sliding_window=8, use_sliding_window=False)
    assert load_directory(off).config.attention.layer_slides == (False, False)
    upper = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}
    on = write_directory(tmp_path / "c", tiny_model("qwen2"), **upper)
    assert load_directory(on).config.attention.layer_slides == (False, True)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_gemma3_with_vision_gives_its_text_model(prefix: str, tmp_path: Path) -> None:
    model = tiny_model("gemma3", tied=True)
    path = write_directory(tmp_path / "g", model)
    text_config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text_config}))
    vision = {"vision_tower.embeddings.weight": np.zeros((4, 4), np.float32)}
    save_file(hf_tensors(model, prefix) | vision, path / "model.safetensors")
    assert_weights(load_directory(path), model)


def test_shards_and_half_precision(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    path = write_directory(tmp_path / "q", model)
    (path / "model.safetensors").unlink()
    tensors = {name: weight.astype(np.float16) for name, weight in hf_tensors(model).items()}
    names = sorted(tensors)
    shards = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, path / shard)
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_weights(load_directory(path), model, tolerance=2e-3)


def test_bfloat16_weights(tmp_path: Path) -> None:
    model = tiny_model("llama")
    path = write_directory(tmp_path / "l", model)
    raw = (path / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, body, offset = json.loads(raw[8 : 8 + size]), raw[8 + size :], 0
    pieces = []
    for entry in header.values():
        start, stop = entry["data_offsets"]
        pieces.append(np.frombuffer(body[start:stop], "<u2")[1::2].tobytes())  # the upper halves: bf16 by truncation
        entry |= {"dtype": "BF16", "data_offsets": [offset, offset + (stop - start) // 2]}
        offset += (stop - start) // 2
    encoded = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(pieces))
    checkpoint = load_directory(path)
    want = (model.weights["layers.1.k"].view(np.uint32) & 0xFFFF0000).view(np.float32)
    np.testing.assert_array_equal(unpack(pack(checkpoint.matrices["layers.1.k"], MatrixKind.F32)), want)
    assert want.shape == (KV_HEADS * HEAD_DIM, HIDDEN)
