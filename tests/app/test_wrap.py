"""Lines break between words, wherever the pieces of the text are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sojourn.app.wrap import WordWrap

TEXT = st.text(alphabet="ab \n字é", max_size=80)


def wrapped(text: str, width: int, cuts: list[int] | None = None) -> str:
    wrap = WordWrap(width)
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts or []), len(text)]
    return "".join(wrap.feed(text[a:b]) for a, b in itertools.pairwise(places)) + wrap.flush()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("one\ntwo three", ["one", "two", "three"]),
        ("abcdefghij kl", ["abcdefghij", "kl"]),
        ("字字字字字", ["字字字字", "字"]),
        ("    x = 1", ["    x =", "1"]),
    ],
)
def test_words_stay_whole(text: str, lines: list[str]) -> None:
    assert wrapped(text, 8).split("\n") == lines


@given(text=TEXT, width=st.integers(1, 20), cuts=st.lists(st.integers(0, 80), max_size=5))
def test_where_the_pieces_are_cut_does_not_matter(text: str, width: int, cuts: list[int]) -> None:
    assert wrapped(text, width, cuts) == wrapped(text, width)


@given(text=TEXT, width=st.integers(2, 20))
def test_no_line_is_too_wide_and_no_word_is_lost(text: str, width: int) -> None:
    result = wrapped(text, width)
    for line in result.split("\n"):
        assert cell_len(line) <= width or " " not in line.strip()
    assert "".join(result.split()) == "".join(text.split())
