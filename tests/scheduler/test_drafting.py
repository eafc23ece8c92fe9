"""How many drafts a sequence may have, with scripted costs and drafters that are right as often as the script says."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.core.errors import CorruptionError
from sojourn.scheduler.drafting import Acceptance, DraftPolicy

CHEAP = 0.05  # of a decode, what a further row costs
REAL = 0.19
DEAR = 1.0  # as much as a decode


def seconds(rows: int, slope: float) -> float:
    return 0.007 * (1 + slope * (rows - 1))


def told(policy: DraftPolicy, slope: float, rows_max: int = 12) -> DraftPolicy:
    for _ in range(9):
        for rows in range(1, rows_max + 1):
            policy.measured(rows, seconds(rows, slope))
    return policy


class Turn:
    """One sequence alone; how many of its next drafts are right is asked of `right`. Settles a step late, as with overlap."""

    def __init__(self, policy: DraftPolicy, right: Callable[[int], int], slope: float) -> None:
        self.policy = policy
        self.right = right
        self.slope = slope
        self.acceptance = policy.acceptance()
        self.tokens = 0
        self.seconds = 0.0
        self.asked: list[int] = []
        self.late: tuple[int, int] | None = None

    def step(self) -> None:
        asked = self.policy.choose([(self.acceptance, 100)])[0]
        accepted = min(asked, self.right(self.tokens))
        self.asked.append(asked)
        self.tokens += accepted + 1
        self.seconds += seconds(1 + asked, self.slope)
        if self.late is not None:
            self.policy.measured(1 + self.late[0], seconds(1 + self.late[0], self.slope))
            self.policy.learn(self.acceptance, *self.late)
        self.late = asked, accepted

    def run(self, tokens: int) -> "Turn":
        while self.tokens < tokens:
            self.step()
        return self

    @property
    def speedup(self) -> float:
        return self.tokens * seconds(1, self.slope) / self.seconds


def geometric(rate: float, seed: int = 1) -> Callable[[int], int]:
    chance = random.Random(seed)

    def right(_: int) -> int:
        count = 0
        while count < 20 and chance.random() < rate:
            count += 1
        return count

    return right


def test_drafts_that_are_always_right_get_as_many_as_there_may_be() -> None:
    turn = Turn(DraftPolicy(8), lambda _: 8, REAL).run(300)
    assert turn.asked[-10:].count(8) >= 9, "but for a step now and then to compare with"
    assert turn.speedup > 3


@pytest.mark.parametrize("slope", [CHEAP, REAL, DEAR])
def test_drafts_that_are_never_right_cost_nothing_to_speak_of(slope: float) -> None:
    policy = DraftPolicy(8)
    Turn(policy, lambda _: 0, slope).run(200)  # the engine's first turn learns for all
    for _ in range(3):
        assert Turn(policy, lambda _: 0, slope).run(256).speedup > (0.98 if slope < DEAR else 0.96)


def test_the_first_turn_of_an_engine_learns_at_little_cost() -> None:
    assert Turn(DraftPolicy(8), lambda _: 0, REAL).run(256).speedup > 0.98


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
@pytest.mark.parametrize("slope", [CHEAP, REAL, DEAR])
def test_a_turn_is_never_slowed_down(rate: float, slope: float) -> None:
    policy = told(DraftPolicy(8), slope)
    speedups = [Turn(policy, geometric(rate, seed), slope).run(256).speedup for seed in range(6)]
    assert sum(speedups) / len(speedups) > 0.98
    assert min(speedups) > 0.95


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.9])
def test_what_drafts_really_cost_is_found_out_also_where_they_were_given_from_the_first_step(rate: float) -> None:
    """All that was measured is steps with drafts, so all of it could be the level of the moment."""
    policy = DraftPolicy(8)
    Turn(policy, geometric(0.97), DEAR).run(500)
    speedups = [Turn(policy, geometric(rate, seed), DEAR).run(256).speedup for seed in range(8)]
    assert sum(speedups[4:]) / 4 > 0.97


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_a_drafter_that_is_known_to_be_dear_is_not_tried_out_at_length(rate: float) -> None:
    policy = DraftPolicy(8, guess=DEAR)
    assert Turn(policy, geometric(rate), DEAR + 0.17).run(100).speedup > 0.95
    assert Turn(policy, geometric(rate), DEAR + 0.17).run(256).speedup > 0.97


def test_where_drafts_are_given_for_long_a_step_goes_without_to_compare() -> None:
    turn = Turn(DraftPolicy(8), lambda _: 8, REAL).run(9000)
    late = turn.asked[300:]
    assert 0.01 < late.count(0) / len(late) < 0.025


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.9])
def test_it_comes_close_to_the_best_fixed_number(rate: float) -> None:
    def fixed(drafts: int) -> float:
        right, tokens, spent = geometric(rate), 0, 0.0
        while tokens < 2000:
            tokens += 1 + min(drafts, right(0))
            spent += seconds(1 + drafts, REAL)
        return tokens * seconds(1, REAL) / spent

    best = max(fixed(drafts) for drafts in range(9))
    assert Turn(told(DraftPolicy(8), REAL), geometric(rate), REAL).run(2000).speedup > 0.93 * best


def test_rows_that_cost_as_much_as_decodes_are_never_worth_a_draft_that_may_be_wrong() -> None:
    turn = Turn(told(DraftPolicy(8), DEAR), geometric(0.8), DEAR).run(300)
    assert turn.asked.count(0) > 0.9 * len(turn.asked)


def test_a_turn_that_begins_to_repeat_itself_is_found_out() -> None:
    turn = Turn(told(DraftPolicy(8), REAL), lambda token: 8 if token > 300 else 0, REAL).run(300)
    assert turn.asked[-1] == 0
    turn.run(900)
    assert turn.asked[-1] == 8


def test_a_turn_that_stops_repeating_itself_is_found_out_at_once() -> None:
    turn = Turn(told(DraftPolicy(8), REAL), lambda token: 0 if token > 300 else 8, REAL).run(300)
    assert turn.asked[-1] == 8
    before, tokens = turn.seconds, turn.tokens
    turn.run(400)
    spent = (turn.seconds - before) / seconds(1, REAL)  # in decodes
    assert spent < 1.1 * (turn.tokens - tokens)
    assert turn.asked[-40:].count(0) > 36


def test_probes_are_small_and_become_rare() -> None:
    turn = Turn(told(DraftPolicy(8), REAL), lambda _: 0, REAL).run(1500)
    late = turn.asked[300:]
    assert 0 < len(late) - late.count(0) < 10
    assert max(late) == 2


def test_short_turns_find_out_too_that_guesses_are_good_again() -> None:
    """None of them is long enough to save up for a probe of its own."""
    policy = told(DraftPolicy(8), REAL)
    for _ in range(20):
        Turn(policy, lambda _: 0, REAL).run(60)
    turns = [Turn(policy, lambda _: 8, REAL).run(12) for _ in range(8)]
    assert turns[-1].asked.count(8) > 0


def test_a_probe_stays_open_until_the_drafter_has_something_to_say() -> None:
    policy = told(DraftPolicy(8), REAL)
    turn = Turn(policy, lambda _: 0, REAL).run(300)
    for _ in range(400):  # nothing is drafted
        policy.choose([(turn.acceptance, 8)])
    assert [policy.choose([(turn.acceptance, 8)])[0] for _ in range(3)] == [2, 2, 2]
    policy.learn(turn.acceptance, 2, 0)
    assert policy.choose([(turn.acceptance, 8)]) == [0]


def test_a_cost_that_was_measured_amiss_is_measured_again() -> None:
    """Something else had the machine while there were drafts: for a while each of them cost ten decodes."""
    policy = DraftPolicy(8)
    for _ in range(20):
        policy.measured(1, seconds(1, REAL))
        for rows in range(2, 10):
            policy.measured(rows, seconds(rows, 10.0))
    turn = Turn(policy, lambda _: 8, REAL).run(4000)
    assert turn.asked[0] == 0
    assert turn.asked[-1] > 4


def learned(policy: DraftPolicy, accepted: int, drafted: int = 8) -> Acceptance:
    one = policy.acceptance()
    for _ in range(40):
        policy.learn(one, drafted, accepted)
    return one


def test_no_more_than_there_is_room_for() -> None:
    policy = told(DraftPolicy(8), REAL)
    good = learned(policy, 8)
    assert policy.choose([(good, 100)]) == [8]
    assert policy.choose([(good, 3)]) == [3]
    assert policy.choose([(good, 0)]) == [0]
    assert policy.choose([]) == []
    assert DraftPolicy(0).choose([(DraftPolicy(0).acceptance(), 100)]) == [0]


def test_in_a_batch_drafts_go_to_whom_they_serve() -> None:
    policy = told(DraftPolicy(8), CHEAP, 40)
    good, bad = learned(policy, 8), learned(policy, 0)
    first, second = policy.choose([(bad, 8), (good, 8)])
    assert first <= 2 < second


def test_what_one_gains_does_not_slow_another_by_more_than_a_tenth() -> None:
    policy = told(DraftPolicy(8), REAL, 40)
    good, bad = learned(policy, 8), learned(policy, 0)
    assert policy.choose([(good, 8), (bad, 8)])[0] <= 1
    both = policy.choose([(good, 8), (learned(policy, 8), 8)])
    assert both == [8, 8]


def test_more_accepted_than_drafted_is_a_broken_law() -> None:
    policy = DraftPolicy(4)
    with pytest.raises(CorruptionError):
        policy.learn(policy.acceptance(), 1, 2)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40),
    st.lists(st.integers(0, 10), min_size=1, max_size=5),
    st.integers(0, 8),
)
def test_whatever_was_learned_a_choice_is_within_its_bounds_and_the_same_again(
    history: list[tuple[int, int]], rooms: list[int], drafts_max: int
) -> None:
    def chosen() -> list[int]:
        policy = DraftPolicy(drafts_max)
        asking = [(policy.acceptance(), room) for room in rooms]
        for index, (drafted, accepted) in enumerate(history):
            policy.measured(1 + drafted, seconds(1 + drafted, REAL))
            policy.learn(asking[index % len(rooms)][0], drafted, min(drafted, accepted))
        return policy.choose(asking)

    assert all(0 <= count <= min(room, drafts_max) for count, room in zip(chosen(), rooms, strict=True))
    assert chosen() == chosen()
