"""Who waits for the disk, for how long, and who need not: a fetch is part of an admission, and no disk holds up a request."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sojourn.cache import tiers_back, tiers_fetch
from sojourn.cache.protocol import CacheRequest, Terms
from sojourn.cache.tiers_back import PATIENCE_S, SLOW_S
from sojourn.cache.tiers_fetch import Fetch
from tests.cache.test_tiers import NEVER, config, history_on, history_on_named, resume, save, told, world_on
from tests.support.fake_store import FakeReading, FakeStore, Odds
from tests.support.session_world import SessionWorld


def hung_on(count: int, seconds_per_token: float | None = None) -> tuple[SessionWorld, list[list[int]]]:
    """An engine on a disk that does not answer, which has the KV of so many sessions; and their histories."""
    store = FakeStore()
    before = world_on(store, config(pages=400))
    histories = [history_on_named(before, f"s{index}", [index] * 30) for index in range(count)]
    save(before)
    store.odds = Odds(calls_max=NEVER)
    after = world_on(store, config(pages=400))
    after.world.seconds_per_token = seconds_per_token
    return after, histories


def test_all_who_wait_for_a_disk_that_hangs_give_up_together() -> None:
    after, histories = hung_on(8)
    began = after.clock.now
    turns = [after.turn(after.service.open(f"s{index}"), [*tokens, 1], 2) for index, tokens in enumerate(histories)]
    after.run()
    assert all(turn.end is not None for turn in turns)
    assert after.clock.now - began < 1.5 * PATIENCE_S
    assert told(after).slow == 8
    assert told(after).fetches == 2
    after.close_all()


def test_after_a_slow_fetch_reading_costs_what_it_took_for_a_while() -> None:
    after, histories = hung_on(3, seconds_per_token=0.1)

    def resumed(index: int) -> tuple[int, int]:
        after.run_turn(after.service.open(f"s{index}"), [*histories[index], 1], 2)
        return told(after).fetches, told(after).slow

    assert resumed(0) == (1, 1)
    declined = told(after).declined
    assert resumed(1) == (1, 1), "computing is faster than what the last one took"
    assert told(after).declined > declined
    after.clock.now += SLOW_S
    assert resumed(2) == (2, 2)
    after.close_all()


def test_a_fetch_that_goes_well_ends_the_distrust() -> None:
    after, histories = hung_on(3, seconds_per_token=0.1)
    store = after.world.store
    assert isinstance(store, FakeStore)
    after.run_turn(after.service.open("s0"), [*histories[0], 1], 2)
    after.world.seconds_per_token = 1.0  # it is worth a try, whatever it takes
    store.odds = Odds()
    after.run_turn(after.service.open("s1"), [*histories[1], 1], 2)
    after.world.seconds_per_token = 0.1
    end = after.run_turn(after.service.open("s2"), [*histories[2], 1], 2)
    assert end.usage.cached_source == "disk"
    assert (told(after).fetches, told(after).slow) == (3, 1)
    after.close_all()


def asking(world: SessionWorld, history: Sequence[int]) -> CacheRequest:
    """A request that waits somewhere, without a scheduler."""
    return world.world.request([*history, 1, 2, 3]).cached


def test_fetches_that_nobody_asks_for_any_more_give_their_places_to_others() -> None:
    after, histories = hung_on(3)
    first, second, third = (asking(after, history) for history in histories)
    assert after.slots.is_fetching(first)
    assert after.slots.is_fetching(second)
    after.clock.now += 0.6 * PATIENCE_S
    assert after.slots.is_fetching(third)
    assert told(after).fetches == 2
    after.clock.now += 0.6 * PATIENCE_S
    assert after.slots.is_fetching(third)
    assert (told(after).fetches, told(after).slow) == (3, 2)
    assert not after.slots.is_fetching(first)


def test_one_who_waits_for_pages_is_seen_while_others_fetch() -> None:
    after, histories = hung_on(1)
    world = SessionWorld(config(pages=24), pages=after.world.store)
    running = world.submit([9] * 40, 20)
    world.step(3)
    waiting = world.submit([8] * 70, 4)
    world.turn(world.service.open("s0"), [*histories[0], 1], 2)
    world.step(3)
    assert world.world.scheduler.is_fetching
    blocked = world.world.scheduler.blocked()
    assert blocked is not None
    assert blocked.request.cached.num_prompt == 70
    assert dict(world.world.scheduler.statistics().waiting_for) == {
        "no_pages": 1, "batch_full": 0, "fetching": 1, "in_line": 0,
    }  # fmt: skip
    world.run()
    assert running.end is not None
    assert waiting.end is not None
    assert not any(dict(world.world.scheduler.statistics().waiting_for).values())


def test_nothing_is_fetched_for_one_who_has_no_place() -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [2, 3, 4] * 12)
    save(before)
    after = world_on(store, replace(config(), seqs_max=1))
    running = after.submit([9] * 10, 20)
    after.step(2)
    record = after.turn(after.service.open("talk"), [*history, 1], 4)
    while running.end is None:
        assert told(after).fetches == 0
        after.step()
    after.run()
    assert record.end is not None
    assert record.end.usage.cached_source == "disk"
    after.close_all()


def test_a_fetch_yields_as_its_admission_would() -> None:
    """Nobody who ranks above it is demoted for what it reads."""
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [2, 3, 4] * 12)
    save(before)
    after = world_on(store, config(pages=16))
    hot = after.service.open("hot")
    for _ in range(2):
        after.run_turn(hot, [7] * 20, 4)
    kept = after.slots.session_held_tokens()
    cold = asking(after, history)
    patient = Terms(spare=cold.num_tokens, others=1, yields=True)
    assert not after.slots.is_fetching(cold, patient)
    assert (told(after).fetches, after.slots.session_held_tokens()) == (0, kept)
    assert not cold.is_fetched, "it may be later"
    assert not after.slots.is_fetching(cold, replace(patient, yields=False))
    assert after.slots.session_held_tokens() == 0
    assert after.slots.match_prefix(cold.key, cold.reusable).prefix_len >= (len(history) - 1) // 4 * 4


@pytest.mark.parametrize("is_short", [False, True])
def test_what_was_evicted_before_the_seat_came_is_fetched_once_more(is_short: bool) -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [2, 3, 4] * 12)
    save(before)
    after = world_on(store, config())
    request = asking(after, history)
    radix = after.world.radix
    assert radix is not None
    whole = (len(history) - 1) // 4 * 4
    for fetches in (1, 2):
        assert not after.slots.is_fetching(request), "a store that answers at once"
        assert told(after).fetches == fetches
        assert after.slots.match_prefix(request.key, request.reusable).prefix_len == whole
        assert not after.slots.is_fetching(request), "nothing is lost, nothing is begun"
        assert told(after).fetches == fetches
        radix.make_room((64 if not is_short else 60,))
        assert not after.slots.is_fetching(request, None)
        assert told(after).fetches == fetches, "it would not be tried"
    assert not after.slots.is_fetching(request), "once is enough"
    assert told(after).fetches == 2


def test_what_is_hung_up_between_two_steps_is_bounded_whoever_fetched_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeStore()
    before = world_on(store, config(pages=200))
    histories = [history_on_named(before, f"s{index}", [index] * 30) for index in range(2)]
    save(before)
    monkeypatch.setattr(tiers_fetch, "PIECE_BYTES", 1)
    monkeypatch.setattr(tiers_back, "LAND_BYTES", 1)
    after = world_on(store, config(pages=200))
    for index, history in enumerate(histories):
        after.turn(after.service.open(f"s{index}"), [*history, 1], 2)
    seen, came = 0, 0
    while after.service.has_work:
        after.step()
        came += told(after).fetched_pages > seen
        assert told(after).fetched_pages <= seen + 1
        seen = told(after).fetched_pages
    assert came > 10
    assert (told(after).fetches, told(after).slow) == (2, 0)


def test_what_the_pool_had_is_not_said_to_be_read() -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [2, 3, 4] * 12)
    save(before)
    after = world_on(store, config())
    begun = after.submit(history[:17], 2)
    after.run()
    assert begun.end is not None
    assert begun.end.usage.read_tokens == begun.end.usage.cached_tokens == 16
    end = resume(after, history)
    assert end.usage.cached_source == "disk"
    assert end.usage.cached_tokens >= len(history) - 1
    assert end.usage.read_tokens == end.usage.cached_tokens - 16
    after.close_all()


def test_a_fetch_that_finds_its_room_taken_waits_and_then_has_another_try() -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [2, 3, 4] * 12)
    save(before)
    after = world_on(store, config(pages=16))
    store.odds = Odds(calls_max=NEVER)
    cold = asking(after, history)
    patient = Terms(spare=cold.num_tokens, others=1, yields=True)
    assert after.slots.is_fetching(cold, patient)
    hot = after.service.open("hot")
    for _ in range(2):
        after.run_turn(hot, [7] * 20, 4)
    kept = after.slots.session_held_tokens()
    assert isinstance(cold.fetch, Fetch)
    for piece in cold.fetch.pieces:
        assert isinstance(piece.full, FakeReading)
        piece.full.calls = 0
    assert after.slots.is_fetching(cold, None)
    assert after.slots.session_held_tokens() == kept, "it yields"
    after.clock.now += 1.1 * PATIENCE_S
    assert not after.slots.is_fetching(cold, patient)
    assert not cold.is_fetched
    assert (told(after).slow, told(after).lost) == (0, 0)
    store.odds = Odds()
    assert not after.slots.is_fetching(cold, replace(patient, yields=False))
    assert (told(after).fetches, after.slots.session_held_tokens()) == (2, 0)
    assert after.slots.match_prefix(cold.key, cold.reusable).prefix_len >= (len(history) - 1) // 4 * 4
