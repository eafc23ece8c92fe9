"""Deltas add up to the decoded text, never show half a character and never keep one back for ever."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.text import tiny_tokenizer, tokenizer_of

from sojourn.api.text.detokenizer import Detokenizer
from sojourn.models.store import LoadedModel
from sojourn.models.tokenizer import Tokenizer


def deltas(tokenizer: Tokenizer, ids: list[int], skip_special: bool = True) -> list[str]:
    stream = Detokenizer(tokenizer, skip_special=skip_special)
    return [*map(stream.feed, ids), stream.flush()]


def test_a_character_of_four_bytes_appears_with_its_last() -> None:
    tokenizer = tiny_tokenizer()
    assert deltas(tokenizer, tokenizer.encode("a😀b")) == ["a", "", "", "", "😀", "b", ""]


def test_an_incomplete_end_is_flushed_once() -> None:
    tokenizer = tiny_tokenizer()
    stream = Detokenizer(tokenizer)
    assert [stream.feed(i) for i in tokenizer.encode("😀")[:3]] == ["", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_a_byte_that_cannot_continue_is_replaced_at_once() -> None:
    tokenizer = tiny_tokenizer()
    first = tokenizer.encode("😀")[0]
    assert deltas(tokenizer, [first, *tokenizer.encode("x")]) == ["", "\ufffdx", ""]


@pytest.mark.parametrize("skip_special", [True, False])
def test_random_ids_of_both_models_add_up(smollm2: LoadedModel, gemma3: LoadedModel, skip_special: bool) -> None:
    rng = random.Random(5)
    for model in (smollm2, gemma3):
        tokenizer = tokenizer_of(model.tokenizer_json, model.text)
        broken = [i for i in range(1000) if not is_utf8(tokenizer.id_to_piece(i))]  # byte tokens, halves of characters
        for _ in range(400):
            ids = [
                rng.choice(broken) if rng.random() < 0.6 else rng.randrange(tokenizer.vocab_size + 5)
                for _ in range(rng.randint(0, 40))
            ]
            data = b"".join(tokenizer.id_to_piece(i) for i in ids if not (skip_special and tokenizer.is_special(i)))
            assert "".join(deltas(tokenizer, ids, skip_special)) == data.decode("utf-8", errors="replace")
            assert tokenizer.decode(ids, skip_special=skip_special) == data.decode("utf-8", errors="replace")


def is_utf8(data: bytes) -> bool:
    return data == data.decode("utf-8", errors="ignore").encode()


@given(st.lists(st.integers(0, 260) | st.integers(97, 105), max_size=40), st.booleans())
def test_any_bytes_add_up(ids: list[int], strip: bool) -> None:
    tokenizer = tiny_tokenizer(("<s>", "</s>"), space_prefix=strip)
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids)


def test_text_streams_without_waiting(gemma3: LoadedModel) -> None:
    """At any token at most three bytes are kept back: the longest beginning of a character."""
    tokenizer = tokenizer_of(gemma3.tokenizer_json, gemma3.text)
    ids = tokenizer.encode("Ein Satz mit 😀, 漢字 und \U00010348\U000e0041 am Ende")
    stream = Detokenizer(tokenizer)
    shown, sent = 0, 0
    for token_id in ids:
        sent += len(tokenizer.id_to_piece(token_id))
        shown += len(stream.feed(token_id).encode())
        assert 0 <= sent - shown <= 3


def test_leading_space_goes_away_once() -> None:
    tokenizer = tiny_tokenizer(("<s>", "</s>"), space_prefix=True)
    ids = tokenizer.encode("<s> a b")
    assert deltas(tokenizer, ids) == ["", "", " ", "a", " ", "b", ""]
