"""Ids equal llama.cpp's over the stored corpus (tests/data/tokenization/make.py), and text comes back."""

import json
import zlib
from pathlib import Path

import pytest
import tokenizers
from tests.support.text import BYTE_LEVEL, byte_level_json, tiny_tokenizer, tokenizer_of

from sojourn.core.errors import ClientError, ModelError
from sojourn.models.store import LoadedModel
from sojourn.models.text_config import PieceStyle, TextConfig
from sojourn.models.tokenizer import SPACE_MARK, Tokenizer
from sojourn.models.tokenizer_gguf import cut_words
from sojourn.models.tokenizer_pre import word_cut

DATA = Path(__file__).parents[1] / "data" / "tokenization"
CORPUS: list[str] = json.loads((DATA / "corpus.json").read_text())
SMOLLM2_LACKS = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}  # bytes without a token, beside those UTF-8 never has


def differences(tokenizer: Tokenizer, name: str) -> list[tuple[str, str]]:
    reference = json.loads((DATA / f"{name}.json").read_text())
    return [
        (mode, text)
        for mode in ("special", "plain")
        for text, ids in zip(CORPUS, reference[mode], strict=True)
        if tokenizer.encode(text, parse_special=mode == "special") != ids
    ]


def test_smollm2_equals_llama_cpp(smollm2: LoadedModel) -> None:
    assert differences(tokenizer_of(smollm2.tokenizer_json, smollm2.text), "smollm2") == []


def test_gemma3_equals_llama_cpp(gemma3: LoadedModel) -> None:
    assert differences(tokenizer_of(gemma3.tokenizer_json, gemma3.text), "gemma3") == []


@pytest.mark.parametrize("pre", ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "deepseek-v3"])
def test_word_cuts_equal_llama_cpp(smollm2: LoadedModel, pre: str) -> None:
    reference = json.loads((DATA / "pre.json").read_text())[pre]
    data = json.loads(smollm2.tokenizer_json)
    cut = word_cut(pre)
    data["model"]["ignore_merges"] = cut.whole_words
    inner = tokenizers.Tokenizer.from_str(json.dumps(data))
    inner.pre_tokenizer = cut_words(cut, data["model"]["vocab"])
    tokenizer = Tokenizer(inner.to_str(), smollm2.text)
    sums = [zlib.crc32(json.dumps(tokenizer.encode(text)).encode()) for text in CORPUS]
    assert [text for text, ours, theirs in zip(CORPUS, sums, reference, strict=True) if ours != theirs] == []


def test_smollm2_text_comes_back_but_for_bytes_it_lacks(smollm2: LoadedModel) -> None:
    tokenizer = tokenizer_of(smollm2.tokenizer_json, smollm2.text)
    for text in CORPUS:
        kept = bytes(byte for byte in text.encode() if byte not in SMOLLM2_LACKS).decode("utf-8", errors="replace")
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == kept


def test_gemma3_text_comes_back_but_for_the_space_mark(gemma3: LoadedModel) -> None:
    tokenizer = tokenizer_of(gemma3.tokenizer_json, gemma3.text)
    for text in CORPUS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text.replace(SPACE_MARK, " ")


def test_every_piece_of_the_vocabulary_has_bytes(smollm2: LoadedModel, gemma3: LoadedModel) -> None:
    for model in (smollm2, gemma3):
        tokenizer = tokenizer_of(model.tokenizer_json, model.text)
        assert tokenizer.vocab_size == model.packed.config.vocab_size
        assert all(tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size))
        assert tokenizer.id_to_piece(tokenizer.vocab_size) == b""


def test_special_ids_of_both_models(smollm2: LoadedModel, gemma3: LoadedModel) -> None:
    small = tokenizer_of(smollm2.tokenizer_json, smollm2.text)
    assert [small.id_to_piece(i) for i in small.config.eos_ids] == [b"<|im_end|>", b"<|endoftext|>"]
    assert not small.config.add_bos
    gemma = tokenizer_of(gemma3.tokenizer_json, gemma3.text)
    assert [gemma.id_to_piece(i) for i in gemma.config.eos_ids] == [b"<eos>", b"<end_of_turn>"]
    assert gemma.encode("x", add_bos=True)[0] == gemma.config.bos_id == gemma.token_to_id("<bos>")


def test_html_of_gemma_is_shown(gemma3: LoadedModel) -> None:
    tokenizer = tokenizer_of(gemma3.tokenizer_json, gemma3.text)
    assert tokenizer.decode(tokenizer.encode("<s>no</s> <b>yes</b>")) == "<s>no</s> <b>yes</b>"


def test_special_tokens_are_left_out_of_what_is_read(smollm2: LoadedModel) -> None:
    tokenizer = tokenizer_of(smollm2.tokenizer_json, smollm2.text)
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>")
    assert tokenizer.decode(ids) == "user\nHi"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>user\nHi<|im_end|>"
    plain = tokenizer.encode("<|im_end|>", parse_special=False)
    assert not any(map(tokenizer.is_special, plain))
    assert tokenizer.decode(plain) == "<|im_end|>"


def test_half_a_character_decodes_to_a_replacement() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("é!")
    assert tokenizer.decode(ids[1:]) == "\ufffd!"


def test_lone_surrogate_is_the_callers_mistake() -> None:
    with pytest.raises(ClientError, match="lone surrogate at character 2"):
        tiny_tokenizer().encode("ab\ud800")


def test_broken_tokenizer_json_is_refused() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer('{"version": "1.0"', BYTE_LEVEL)


def test_saved_truncation_does_not_cut_prompts() -> None:
    data = json.loads(byte_level_json({"a": 0, "b": 1}, []))
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    assert Tokenizer(json.dumps(data), BYTE_LEVEL).encode("abab") == [0, 1, 0, 1]


def test_text_config_survives_json() -> None:
    config = TextConfig(
        pieces=PieceStyle.SENTENCEPIECE,
        bos_id=1,
        eos_ids=(2, 7),
        add_bos=True,
        strip_leading_space=True,
        chat_template="{{ 'ü' }}",
        special_tokens=(("bos_token", "<s>"),),
        shown_ids=(9,),
    )
    assert TextConfig.from_json(config.to_json()) == config
    assert TextConfig.from_json(BYTE_LEVEL.to_json()) == BYTE_LEVEL


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pieces": "letters"}'])
def test_broken_text_config_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="text config cannot be read"):
        TextConfig.from_json(text)
