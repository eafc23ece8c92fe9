"""Drafts from a sequence's own tokens, against a twin that searches all of them every time."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sojourn.core.ids import SeqId
from sojourn.spec.ngram import LINEAGE_TOKENS, MORE, RUN, NgramDrafter
from sojourn.spec.protocol import DraftAsk, Drafter
from sojourn.spec.token_index import TokenIndex

LOOKS, LONGEST = 3, 6  # small, so that both bounds are met
SEQ, OTHER = SeqId(0), SeqId(1)


def ids(tokens: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, dtype=np.int32)


def twin_match(tokens: Sequence[int], run: int) -> tuple[int, int]:
    """Place and length, by looking everywhere."""
    end = len(tokens)
    places = [p for p in range(end - 1, run - 1, -1) if list(tokens[p - run : p]) == list(tokens[end - run :])]
    best = (0, 0)
    for place in places[:LOOKS]:
        same = 0
        while same < min(place, LONGEST) and tokens[place - 1 - same] == tokens[end - 1 - same]:
            same += 1
        if same > best[1]:
            best = (place, same)
    return best


def twin_drafts(tokens: Sequence[int], num_max: int) -> tuple[int, ...]:
    place, length = twin_match(tokens, RUN)
    if length == 0:
        return ()
    grown = list(tokens)
    for index in range(min(num_max, 1 + MORE * (length - RUN))):
        grown.append(grown[place + index])
    return tuple(grown[len(tokens) :])


def drafter(kept_tokens_max: int = 1000) -> NgramDrafter:
    return NgramDrafter(looks=LOOKS, longest=LONGEST, kept_tokens_max=kept_tokens_max)


def proposed(drafter: Drafter, num_max: int, seq: SeqId = SEQ) -> tuple[int, ...]:
    return drafter.propose([DraftAsk(seq, num_max)])[0]


def test_what_followed_the_same_tokens_is_proposed() -> None:
    one = drafter()
    one.begin(SEQ, None, ids([7, 1, 2, 3, 4, 5, 9, 1, 2, 3]))
    assert proposed(one, 3) == (4, 5, 9)
    assert proposed(one, 1) == (4,)
    assert proposed(one, 0) == ()


def test_a_sequence_that_repeats_itself_is_taken_to_go_on() -> None:
    one = drafter()
    one.begin(SEQ, None, ids([1, 2, 3] * 4))
    assert proposed(one, 8) == (1, 2, 3, 1, 2, 3, 1, 2)


def test_a_short_match_is_given_one_draft_and_a_long_one_all_it_was_asked_for() -> None:
    one = drafter()
    one.begin(SEQ, None, ids([1, 2, 50, 51, 52, 53, 0, 1, 2]))
    assert proposed(one, 4) == (50,)
    one.begin(SEQ, None, ids([1, 2, 3, 4, 50, 51, 52, 53, 0, 1, 2, 3, 4]))
    assert proposed(one, 4) == (50, 51, 52, 53)


def test_of_several_places_the_longest_match_wins_and_of_equals_the_latest() -> None:
    one = drafter()
    one.begin(SEQ, None, ids([5, 1, 2, 60, 6, 1, 2, 70, 7, 1, 2, 80, 5, 1, 2]))
    assert proposed(one, 1) == (60,)
    one.begin(SEQ, None, ids([5, 1, 2, 60, 6, 1, 2, 70, 7, 1, 2, 80, 9, 1, 2]))
    assert proposed(one, 1) == (80,)


def test_nothing_is_proposed_without_a_match_or_for_a_sequence_that_never_began() -> None:
    one = drafter()
    one.begin(SEQ, None, ids([1, 2, 3, 4, 5]))
    assert proposed(one, 8) == ()
    assert proposed(one, 8, OTHER) == ()
    one.extend(OTHER, [1, 2])
    one.end(OTHER)
    one.end(SEQ)
    assert proposed(one, 8) == ()


def test_a_lineage_finds_its_tokens_again_and_others_do_not() -> None:
    one = drafter()
    one.begin(SEQ, "a", ids([1, 2, 3, 4]))
    one.end(SEQ)
    assert one.kept_tokens == 4 + LINEAGE_TOKENS
    one.begin(SEQ, "a", ids([1, 2, 3, 4, 1, 2]))
    assert one.kept_tokens == 0  # taken, not shared
    assert proposed(one, 2) == (3,)
    one.begin(OTHER, "b", ids([1, 2]))
    assert proposed(one, 2, OTHER) == ()


def test_two_sequences_of_a_lineage_do_not_touch_each_other() -> None:
    one = drafter()
    one.begin(SEQ, "a", ids([1, 2, 3]))
    one.begin(OTHER, "a", ids([1, 2, 9, 1, 2]))
    one.extend(SEQ, [1, 2])
    assert proposed(one, 1) == (3,)
    assert proposed(one, 1, OTHER) == (9,)
    one.end(SEQ)
    one.end(OTHER)
    assert one.kept_tokens == 5 + LINEAGE_TOKENS  # one index of the lineage is kept, not two


def test_without_a_lineage_nothing_is_kept() -> None:
    one = drafter()
    one.begin(SEQ, None, ids([1, 2, 3]))
    one.end(SEQ)
    assert one.kept_tokens == 0


def test_the_least_recently_used_lineage_is_given_up_first() -> None:
    one = drafter(kept_tokens_max=10 + 2 * LINEAGE_TOKENS)
    for lineage, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4)):
        one.begin(SEQ, lineage, ids(range(size)))
        one.end(SEQ)
    assert one.kept_tokens == 8 + 2 * LINEAGE_TOKENS  # a and c
    one.begin(SEQ, "b", ids(range(4)))
    assert one.kept_tokens == 8 + 2 * LINEAGE_TOKENS
    one.end(SEQ)
    one.begin(SEQ, "a", ids(range(4)))
    assert one.kept_tokens == 8 + 2 * LINEAGE_TOKENS  # b came back and a had gone for it
    one.begin(OTHER, "d", ids(range(11 + LINEAGE_TOKENS)))
    one.end(OTHER)
    assert one.kept_tokens == 0  # larger than all that may be kept


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 9))
def test_drafts_are_the_twin_s(tokens: list[int], num_max: int) -> None:
    one = drafter()
    one.begin(SEQ, None, ids(tokens))
    assert proposed(one, num_max) == twin_drafts(tokens, num_max)


@given(st.lists(st.sampled_from([0, 1, 2**21, 2**21 + 1, 2**31 - 1]), max_size=30))
def test_ids_that_share_a_key_are_told_apart(tokens: list[int]) -> None:
    index = TokenIndex(run=2, looks=100, longest=LONGEST)
    index.become(ids(tokens))
    place, length = index.longest_match()
    assert length == 0 or tokens[place - length : place] == tokens[len(tokens) - length :]
    index.cut(0)
    assert index.longest_match() == (0, 0)


@pytest.mark.parametrize("run", [1, 2, 3])
@given(data=st.data())
def test_a_cut_index_is_one_that_never_went_so_far(run: int, data: st.DataObject) -> None:
    index = TokenIndex(run=run, looks=LOOKS, longest=LONGEST)
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        tokens = tokens[: data.draw(st.integers(0, len(tokens)))]
        index.cut(len(tokens))
        new = data.draw(st.lists(st.integers(0, 2), max_size=12))
        index.extend(new)
        tokens += new
        assert index.tokens() == tokens
        assert index.longest_match() == twin_match(tokens, run)


class Lineages(RuleBasedStateMachine):
    """Requests of three lineages on two rows: a turn goes on from what stood, or from less, or from something else."""

    def __init__(self) -> None:
        super().__init__()
        self.drafter = drafter(kept_tokens_max=40)
        self.known: dict[SeqId, list[int]] = {}

    @rule(
        seq=st.sampled_from([SEQ, OTHER]),
        lineage=st.sampled_from(["a", "b", None]),
        keep=st.integers(0, 40),
        new=st.lists(st.integers(0, 2), max_size=15),
    )
    def begin(self, seq: SeqId, lineage: str | None, keep: int, new: list[int]) -> None:
        tokens = self.known.get(seq, [])[:keep] + new
        self.drafter.begin(seq, lineage, ids(tokens))
        self.known[seq] = tokens

    @rule(seq=st.sampled_from([SEQ, OTHER]), new=st.lists(st.integers(0, 2), max_size=5))
    def extend(self, seq: SeqId, new: list[int]) -> None:
        self.drafter.extend(seq, new)
        if seq in self.known:
            self.known[seq] += new

    @rule(seq=st.sampled_from([SEQ, OTHER]))
    def end(self, seq: SeqId) -> None:
        self.drafter.end(seq)
        self.known.pop(seq, None)

    @invariant()
    def drafts_are_the_twin_s(self) -> None:
        for seq in (SEQ, OTHER):
            assert proposed(self.drafter, 5, seq) == twin_drafts(self.known.get(seq, []), 5)
        assert self.drafter.kept_tokens <= 40


TestLineages = Lineages.TestCase
TestLineages.settings = settings(max_examples=60, stateful_step_count=25)
