"""GGUF metadata that is missing, contradictory or unknown, and merges rebuilt from scores."""

import pytest

from sojourn.core.errors import ModelError
from sojourn.models.tokenizer import Tokenizer
from sojourn.models.tokenizer_gguf import merges_from_scores, tokenizer_from_gguf

BYTE_LEVEL_FIELDS: dict[str, object] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<|im_end|>", "1", "11"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b", "1 1"],
    "tokenizer.ggml.eos_token_id": 2,
}
SPM_TOKENS = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581a", "\u2581ab"]
SPM_FIELDS: dict[str, object] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": SPM_TOKENS,
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -2.0, -3.0],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def build(fields: dict[str, object], **changes: object) -> Tokenizer:
    named = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer(*tokenizer_from_gguf({key: v for key, v in (fields | named).items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"model": "t5"}, r"tokenizer\.ggml\.model: 't5' is not supported; known: gpt2"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens is missing"),
        ({"tokens": ["a", "b", "ab", "a", "1", "11"]}, r"tokenizer\.ggml\.tokens: 'a' occurs twice"),
        ({"token_type": [1]}, r"tokenizer\.ggml\.token_type: needs one entry for each of the 6"),
        ({"merges": None}, r"tokenizer\.ggml\.merges is missing"),
        ({"merges": ["a b", "b a"]}, r"tokenizer\.ggml\.merges\[1\]: 'b a' does not join"),
        ({"pre": "klingon"}, r"tokenizer\.ggml\.pre: 'klingon' is not known; known: .*llama-bpe.*qwen2.*smollm"),
        ({"eos_token_id": 6}, r"tokenizer\.ggml\.eos_token_id: 6 is not one of the 6 tokens"),
    ],
)
def test_byte_level_metadata_is_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(BYTE_LEVEL_FIELDS, **changes)


def test_sentencepiece_needs_a_score_for_each_token() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.scores: a llama tokenizer needs one score per token"):
        build(SPM_FIELDS, scores=[0.0])


def test_digits_are_split_first_only_where_the_cut_says_so() -> None:
    assert build(BYTE_LEVEL_FIELDS, pre="gpt-2").encode("11") == [5]
    assert build(BYTE_LEVEL_FIELDS, pre="smollm").encode("11") == [4, 4]


def test_end_of_turn_token_that_the_converter_left_normal_is_special_and_an_end() -> None:
    tokenizer = build(BYTE_LEVEL_FIELDS)
    assert tokenizer.encode("ab<|im_end|>") == [2, 3]
    assert tokenizer.is_special(3)
    assert tokenizer.config.eos_ids == (2, 3)


def test_eot_and_eom_ids_end_a_turn_too() -> None:
    assert build(SPM_FIELDS, eot_token_id=5, eom_token_id=6).config.eos_ids == (2, 5, 6)


def test_best_score_is_merged_first() -> None:
    ids = {token: i for i, token in enumerate(SPM_TOKENS)}
    scores = [0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -2.0, -3.0]
    merges = merges_from_scores(SPM_TOKENS, scores, ids)
    assert merges == [("a", "b"), ("\u2581", "a"), ("\u2581a", "b"), ("\u2581", "ab")]


def test_sentencepiece_puts_a_space_before_text_and_takes_it_away() -> None:
    tokenizer = build(SPM_FIELDS)
    assert tokenizer.config.add_bos  # what a SentencePiece file means when it does not say
    assert tokenizer.encode("ab") == [8]
    assert tokenizer.encode("</s>ab") == [2, 8]  # after a special token too, as llama.cpp does
    assert tokenizer.decode([8, 7]) == "ab a"
    assert build(SPM_FIELDS, add_space_prefix=False).encode("ab") == [6]


def test_text_that_continues_gets_no_space() -> None:
    bytes_and_text = ["<0x0A>", *SPM_TOKENS]
    kinds, scores = [6, 2, 3, 3, 1, 1, 1, 1, 1, 1], [0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -2.0, -3.0]
    tokenizer = build(
        SPM_FIELDS, tokens=bytes_and_text, token_type=kinds, scores=scores, bos_token_id=2, eos_token_id=3
    )
    assert tokenizer.encode("ab") == [9]
    assert tokenizer.encode("ab", continues=True) == [7]
    assert tokenizer.encode(" ab", continues=True) == [9]
    assert tokenizer.encode("\nab", continues=True) == [0, 7]
    assert tokenizer.encode("</s>ab", continues=True) == [3, 9]
    assert tokenizer.encode("", continues=True) == []


def test_end_of_text_of_llama_is_an_end_and_hidden() -> None:
    tokenizer = build(SPM_FIELDS)
    assert tokenizer.config.eos_ids == (2,)
    assert tokenizer.decode([8, 2]) == "ab"
