"""Stops at every offset, over token edges and inside tokens; what is shown never has to be taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.text import tiny_tokenizer, tokenizer_of

from sojourn.api.text.stop_strings import StopStrings, TextStream
from sojourn.core.errors import ClientError
from sojourn.models.store import LoadedModel
from sojourn.models.tokenizer import Tokenizer

TEXT = "The quick brown 狐 jumps 😀 over\n\nthe lazy dog, 3.14159 times; naïve café."


def first_match(tokenizer: Tokenizer, ids: list[int], stops: list[str]) -> tuple[str, int] | None:
    """(stop, tokens that stand), as the scheduler finds it."""
    matcher = StopStrings(tokenizer, stops)
    for count, token_id in enumerate(ids, 1):
        stop = matcher.feed(token_id)
        if stop is not None:
            return stop, count
    return None


def expected_match(text: str, stops: list[str]) -> tuple[str, int] | None:
    """(stop, its first character): the earliest end, and the longest of those, by looking everywhere."""
    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return None
    end, _, stop = min(ends)
    return stop, end - len(stop)


@pytest.mark.parametrize("length", [1, 2, 5, 13])
def test_stops_at_every_offset_of_a_real_output(smollm2: LoadedModel, gemma3: LoadedModel, length: int) -> None:
    for model in (smollm2, gemma3):
        tokenizer = tokenizer_of(model.tokenizer_json, model.text)
        ids = tokenizer.encode(TEXT)
        lengths = [len(tokenizer.decode(ids[:n]).rstrip("\ufffd")) for n in range(len(ids) + 1)]
        for offset in range(len(TEXT) - length + 1):
            stop = TEXT[offset : offset + length]
            start = TEXT.index(stop)
            stand = next(n for n, done in enumerate(lengths) if done >= start + length)
            assert first_match(tokenizer, ids, [stop]) == (stop, stand)
            stream = TextStream(tokenizer, [stop])
            assert "".join(stream.feed([i]) for i in ids) + stream.flush() == TEXT[:start]
            assert stream.match is not None
            assert (stream.match.stop, stream.match.num_tokens, stream.match.text_len) == (stop, stand, start)


@given(
    st.text("ab", max_size=40),
    st.lists(st.text("ab", min_size=1, max_size=6), max_size=5),
    st.lists(st.integers(1, 5), min_size=40, max_size=40),
)
def test_earliest_end_wins_then_the_longest(text: str, stops: list[str], runs: list[int]) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode(text)
    expected = expected_match(text, stops)
    stream, shown = TextStream(tokenizer, stops), ""
    rest = list(ids)
    for run in runs:  # several tokens in one event, as a verify round gives
        shown += stream.feed(rest[:run])
        del rest[:run]
        assert text.startswith(shown)
        assert expected is None or len(shown) <= expected[1]
    shown += stream.flush()
    found = None if stream.match is None else (stream.match.stop, stream.match.text_len)
    assert found == expected
    assert shown == (text if expected is None else text[: expected[1]])
    matched = first_match(tokenizer, ids, stops)
    assert matched == (None if expected is None else (expected[0], expected[1] + len(expected[0])))


def test_only_what_may_begin_a_stop_is_held_back() -> None:
    tokenizer = tiny_tokenizer()
    stream = TextStream(tokenizer, ["</end>"])
    assert [stream.feed([i]) for i in tokenizer.encode("a</e</endx")] == [
        "a",
        "",
        "",
        "",
        "</e",
        "",
        "",
        "",
        "",
        "</endx",
    ]


def test_what_was_held_back_is_shown_when_no_more_comes() -> None:
    tokenizer = tiny_tokenizer()
    stream = TextStream(tokenizer, ["stop"])
    assert stream.feed(tokenizer.encode("a st")) == "a "
    assert stream.flush() == "st"
    assert stream.flush() == ""
    assert stream.match is None


def test_a_stop_inside_one_token_and_text_after_it(smollm2: LoadedModel) -> None:
    tokenizer = tokenizer_of(smollm2.tokenizer_json, smollm2.text)
    ids = tokenizer.encode(" international")
    assert len(ids) == 1
    stream = TextStream(tokenizer, ["nation"])
    assert stream.feed(ids) == " inter"
    assert stream.feed(ids) == ""
    assert stream.flush() == ""


def test_a_stop_of_several_bytes_waits_for_its_last() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("x😀y")
    assert first_match(tokenizer, ids, ["😀"]) == ("😀", 5)
    assert first_match(tokenizer, ids, ["x😀y"]) == ("x😀y", 6)


def test_a_stop_that_names_a_special_token_matches_it() -> None:
    tokenizer = tiny_tokenizer(("<s>", "</s>"))
    ids = tokenizer.encode("ab<s>c")
    assert first_match(tokenizer, ids, ["<s>", "abc"]) == ("<s>", 3)
    stream = TextStream(tokenizer, ["<s>", "abc"])
    assert stream.feed(ids) == "ab"
    assert stream.match is not None
    assert stream.match.text_len == 2


def test_a_matcher_reports_a_stop_once() -> None:
    tokenizer = tiny_tokenizer()
    matcher = StopStrings(tokenizer, ["a"])
    assert [matcher.feed(i) for i in tokenizer.encode("aa")] == ["a", None]


def test_without_stops_nothing_is_held_back() -> None:
    tokenizer = tiny_tokenizer()
    stream = TextStream(tokenizer)
    assert [stream.feed([i]) for i in tokenizer.encode("ab")] == ["a", "b"]


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ClientError, match="a stop string is empty") as caught:
        TextStream(tiny_tokenizer(), ["x", ""])
    assert caught.value.param == "stop"
