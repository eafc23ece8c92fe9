"""A file that cannot be used is refused with its name, the field that is wrong, and what would work."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.support.model_files import GgufOptions, tiny_model, write_directory, write_gguf

from sojourn.core.errors import ModelError
from sojourn.models.gguf import load_gguf
from sojourn.models.gguf_file import read_gguf
from sojourn.models.hf import load_directory


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))


def test_every_truncation_is_noticed(whole: Path) -> None:
    """Wherever the file ends early, the message says so and names the file."""
    content = whole.read_bytes()
    cuts = [*range(0, 4096, 97), *range(4096, len(content), 6007), len(content) - 1]
    for cut in cuts:
        whole.write_bytes(content[:cut])
        with pytest.raises(ModelError, match=r"tiny\.gguf: (truncated|cannot be read|not a GGUF)"):
            load_gguf(whole)


def test_a_truncated_tensor_is_named(whole: Path) -> None:
    content = whole.read_bytes()
    whole.write_bytes(content[:-5])
    with pytest.raises(ModelError, match=r"tensor \S+ ends at byte [\d,]+, the file has [\d,]+; fetch the file again"):
        read_gguf(whole)


def test_arbitrary_corruption_of_the_header_never_escapes_as_another_error(whole: Path) -> None:
    content = bytearray(whole.read_bytes())
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, 9000, size=4):
            damaged[position] = rng.integers(0, 256)
        whole.write_bytes(damaged)
        try:
            load_gguf(whole)
        except ModelError as error:
            refused += "tiny.gguf" in str(error)
    assert refused > 50


@pytest.mark.parametrize(
    ("offset", "replacement", "message"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, (1).to_bytes(4, "little"), "GGUF version 1 is not supported"),
        (4, (3).to_bytes(4, "big"), "big-endian GGUF file is not supported"),
        (8, (2**60).to_bytes(8, "little"), "truncated|unknown|not UTF-8|dimensions"),
        (16, (2**60).to_bytes(8, "little"), "truncated|unknown|not UTF-8"),
    ],
)
def test_preamble(whole: Path, offset: int, replacement: bytes, message: str) -> None:
    content = bytearray(whole.read_bytes())
    content[offset : offset + len(replacement)] = replacement
    whole.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load_gguf(whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (GgufOptions(drop_tensors=("blk.1.ffn_up.weight",)), r"tensor blk\.1\.ffn_up\.weight is missing"),
        (GgufOptions(drop_tensors=("token_embd.weight",)), r"tensor token_embd\.weight is missing"),
        (
            GgufOptions(extra_tensors={"blk.0.attn_output.bias": np.zeros(64, np.float32)}),
            r"attn_output\.bias .*not part",
        ),
        (GgufOptions(drop_fields=("{arch}.block_count",)), r"llama\.block_count is missing"),
        (GgufOptions(fields={"{arch}.block_count": "two"}), r"llama\.block_count is 'two', not one number"),
        (GgufOptions(fields={"{arch}.attention.head_count": 3}), r"head_count 3 is not a multiple of head_count_kv 2"),
        (
            GgufOptions(fields={"{arch}.embedding_length": 32}),
            r"token_embd\.weight has shape \(258, 64\), the configuration",
        ),
        (GgufOptions(fields={"{arch}.expert_count": 8}), r"expert_count is 8: mixtures of experts"),
        (GgufOptions(fields={"{arch}.rope.dimension_count": 8}), r"rope\.dimension_count is 8; only 16"),
        (GgufOptions(fields={"{arch}.rope.scaling.type": "longrope"}), r"rope\.scaling\.type is 'longrope'.*yarn are"),
        (
            GgufOptions(fields={"general.architecture": "mamba"}),
            r"general\.architecture is 'mamba'.*llama, qwen2, qwen3",
        ),
        (GgufOptions(fields={"split.count": 3}), r"split\.count is 3: one part of a split model"),
        (GgufOptions(drop_fields=("tokenizer.ggml.model",)), r"tiny\.gguf: tokenizer\.ggml\.model is missing"),
    ],
)
def test_contents_of_gguf(options: GgufOptions, message: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), options)
    with pytest.raises(ModelError, match=message):
        load_gguf(path)


def test_an_unknown_tensor_type_is_named(whole: Path) -> None:
    content = whole.read_bytes()
    name = b"blk.0.attn_q.weight"
    after = content.index(name) + len(name) + 4 + 2 * 8  # dimensions and their count, then the type
    assert content[after : after + 4] == int(gguf.GGMLQuantizationType.F32).to_bytes(4, "little")
    whole.write_bytes(content[:after] + (999).to_bytes(4, "little") + content[after + 4 :])
    with pytest.raises(ModelError, match=r"tensor blk\.0\.attn_q\.weight has the unknown type 999"):
        load_gguf(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, r"config\.json: model_type is 'mamba'.*llama, mistral, qwen2"),
        ({"hidden_size": None}, r"config\.json: hidden_size is missing"),
        ({"vocab_size": "many"}, r"config\.json: vocab_size is 'many', not a number"),
        ({"hidden_act": "relu"}, r"activation 'relu' is not supported; silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantization_config is set"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            r"rope scaling 'dynamic' is not supported; default, linear",
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, r"low_freq_factor is missing"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is not 1"),
        ({"num_hidden_layers": 3}, r"tensor model\.layers\.2\.self_attn\.q_proj\.weight is missing"),
        ({"layer_types": ["linear_attention"] * 2, "sliding_window": 8}, r"layer_types .*linear_attention"),
        ({"tie_word_embeddings": True, "num_key_value_heads": 3}, r"num_attention_heads 4 is not a multiple"),
    ],
)
def test_contents_of_config_json(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny", tiny_model("mistral"), **changes)
    with pytest.raises(ModelError, match=message):
        load_directory(path)


def test_directories(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny", tiny_model("llama"))
    weights, config, tokenizer = (path / name for name in ("model.safetensors", "config.json", "tokenizer.json"))

    content = weights.read_bytes()
    weights.write_bytes(content[:-7])
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read: .*truncated, fetch it again"):
        load_directory(path)
    weights.write_bytes(content)

    saved = tokenizer.read_bytes()
    tokenizer.unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        load_directory(path)
    tokenizer.write_bytes(saved)

    weights.unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors file; save the model with save_pretrained"):
        load_directory(path)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(ModelError, match=r"1 of 1 files are missing, first model-1\.safetensors"):
        load_directory(path)
    index.unlink()

    config.write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read as JSON"):
        load_directory(path)
    config.unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load_directory(path)
    (path / "some.gguf").touch()
    with pytest.raises(ModelError, match=r"config\.json is missing: give one of its files: some\.gguf"):
        load_directory(path)


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny", tiny_model("llama", tied=True), tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is missing"):
        load_directory(path)


def test_output_biases_and_strange_types_are_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny", tiny_model("llama"))
    tensors = load_file(path / "model.safetensors")
    bias = {"model.layers.0.self_attn.o_proj.bias": np.zeros(64, np.float32)}
    save_file(tensors | bias, path / "model.safetensors")
    with pytest.raises(ModelError, match=r"o_proj\.bias .*not part of architecture llama"):
        load_directory(path)
    save_file(tensors | {"model.norm.weight": np.zeros(64, np.int8)}, path / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"model\.norm\.weight has type I8, which is not supported; F32, F16, BF16 are"
    ):
        load_directory(path)
