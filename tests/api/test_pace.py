"""How long who is turned away is told to wait: measured, while there is something to wait for."""

from tests.support.world import ManualClock

from sojourn.api.pace import ENDINGS, RETRY_MAX_S, Pace


def test_an_ending_every_four_seconds_and_each_who_is_turned_away_waits_for_one_more() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    for _ in range(8):
        pace.began()
    for _ in range(5):
        clock.now += 4
        pace.ended()
    assert [pace.turn_away() for _ in range(3)] == [4, 8, 12]
    clock.now += 4
    pace.ended()
    assert pace.turn_away() == 4


def test_idle_time_does_not_count_and_only_the_last_endings_do() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    for seconds in (50, *[2] * ENDINGS):
        pace.began()
        clock.now += seconds
        pace.ended()
        clock.now += 10_000
    pace.began()
    assert pace.turn_away() == 2


def test_what_has_not_ended_for_long_is_slow_whatever_it_was_before() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    pace.began()
    pace.began()
    clock.now += 1
    pace.ended()
    clock.now += 29
    assert pace.turn_away() == 30


def test_before_the_first_ending_and_at_the_bounds() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    assert pace.turn_away() == 1
    pace.began()
    clock.now += 7
    assert pace.turn_away() == 14  # the second who is turned away
    clock.now += 10_000
    assert pace.turn_away() == RETRY_MAX_S
