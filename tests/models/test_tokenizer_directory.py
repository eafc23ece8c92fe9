"""Hugging Face directories: which file says what, and what happens when one is missing or broken."""

import json
from pathlib import Path

import pytest
from tests.support.text import byte_level_json, tiny_tokenizer
from tokenizers import Tokenizer as Inner
from tokenizers import processors

from sojourn.core.errors import ModelError
from sojourn.models.text_config import PieceStyle, TextConfig
from sojourn.models.tokenizer import Tokenizer
from sojourn.models.tokenizer_directory import tokenizer_from_directory


def write(folder: Path, bos_by_processor: bool = False, **files: object) -> Path:
    inner = Inner.from_str(byte_level_json({"a": 0, "b": 1, "ab": 2}, [["a", "b"]]))
    inner.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    if bos_by_processor:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    inner.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def config_of(folder: Path) -> TextConfig:
    return tokenizer_from_directory(folder)[1]


def test_a_bare_tokenizer_json_is_enough(tmp_path: Path) -> None:
    text, config = tokenizer_from_directory(write(tmp_path))
    assert config.pieces is PieceStyle.BYTE_LEVEL
    assert config.bos_id is None
    assert config.eos_ids == (5,)  # <|im_end|> by its name
    assert Tokenizer(text, config).encode("ab</s>") == [2, 4]


def test_eos_ids_of_every_file_are_joined(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "</s>"},
        generation_config={"eos_token_id": [4, 2]},
        config={"eos_token_id": 1},
    )
    config = config_of(folder)
    assert config.eos_ids == (4, 2, 1, 5)
    assert config.bos_id == 3
    assert dict(config.special_tokens) == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("by_processor", "declared", "adds"), [(True, None, True), (False, None, False), (True, False, False)]
)
def test_bos_is_added_where_a_file_says_so(
    tmp_path: Path, by_processor: bool, declared: bool | None, adds: bool
) -> None:
    settings: dict[str, object] = {"bos_token": "<s>"}
    if declared is not None:
        settings["add_bos_token"] = declared
    text, config = tokenizer_from_directory(write(tmp_path, by_processor, tokenizer_config=settings))
    assert config.add_bos is adds
    assert Tokenizer(text, config).encode("a") == [0]  # never by itself


def test_special_tokens_map_of_older_folders(tmp_path: Path) -> None:
    assert config_of(write(tmp_path, special_tokens_map={"bos_token": "<s>"})).bos_id == 3


def test_chat_template_of_each_place(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert config_of(write(tmp_path, tokenizer_config={"chat_template": "plain"})).chat_template == "plain"
    assert config_of(write(tmp_path, tokenizer_config={"chat_template": named})).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert config_of(tmp_path).chat_template == "file"


def test_sentencepiece_is_seen_by_its_decoder(tmp_path: Path) -> None:
    text, config = _saved_sentencepiece(tmp_path)
    assert config.pieces is PieceStyle.SENTENCEPIECE
    assert not config.strip_leading_space
    assert Tokenizer(text, config).decode(tiny_tokenizer().encode("a é")) == "a é"


def _saved_sentencepiece(folder: Path) -> tuple[str, TextConfig]:
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }
    vocab = {"<unk>": 0} | {f"<0x{b:02X}>": b + 1 for b in range(256)}
    vocab |= {t: 257 + n for n, t in enumerate(["\u2581", "\n", *map(chr, range(0x21, 0x7F))])}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": "<unk>"}
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "model": model, "decoder": decoder, "added_tokens": []})
    )
    return tokenizer_from_directory(folder)


def test_missing_tokenizer_says_what_would_work(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing: save it with save_pretrained"):
        tokenizer_from_directory(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"tokenizer\.model alone is not read"):
        tokenizer_from_directory(tmp_path)


def test_unsupported_decoder_is_named(tmp_path: Path) -> None:
    data = json.loads(byte_level_json({"a": 0}, []))
    data["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match="decoder: WordPiece is not supported; known: ByteLevel"):
        tokenizer_from_directory(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_broken_json_names_its_file(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / name).write_text('{"truncated": ')
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        tokenizer_from_directory(tmp_path)
