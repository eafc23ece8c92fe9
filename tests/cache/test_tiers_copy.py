"""Copies of what stays: an idle conversation's KV is in the store before its pages are given up, at little cost to anybody."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sojourn.cache.protocol import CacheKey
from sojourn.cache.tiers_copy import AHEAD_BYTES, BUSY_BYTES, BUSY_PAUSE_S, QUEUE_PAUSE_S
from sojourn.core.step import Pool
from sojourn.core.tier import KvNames
from tests.cache.test_tiers import config as tiers_config
from tests.cache.test_tiers import told, world_on
from tests.support.fake_store import FakeStore
from tests.support.session_world import SessionWorld
from tests.support.world import WorldConfig, check_identity

config = partial(tiers_config, ahead=True)


def settle(world: SessionWorld) -> None:
    """Until nothing is left to write: as the engine's thread does, which wakes when it was told to."""
    for _ in range(1000):
        wait_s = world.service.wake_in()
        if wait_s is None:
            assert world.slots.slot_statistics().num_to_copy == 0
            return
        world.clock.now += wait_s
        world.step()
    raise AssertionError("it never ends")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("window", [0, 3, 9, 40])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("length", [3, 30, 61])
def test_an_engine_that_is_killed_has_written_its_idle_conversations(
    page_size: int, window: int, length: int, depth: int
) -> None:
    store = FakeStore()
    shape = config(page_size, window, pages=160 // page_size)
    before = world_on(store, shape, depth)
    name = before.service.open("talk")
    before.run_turn(name, [index % 7 for index in range(length)], 9)
    settle(before)
    before.run_turn(name, [3, 4, 5], 7)
    settle(before)
    held = before.slots.pages_held(name)
    assert held > 0, "it keeps what was copied"
    check_identity(before.slots)
    history = before.history(name)
    after = world_on(store, shape, depth)  # of the first nothing is told any more: it was killed
    end = after.run_turn(after.service.open("talk"), [*history, 1, 2, 3], 6)
    undisturbed = before.run_turn(name, [1, 2, 3], 6)
    assert end.output_ids == undisturbed.output_ids
    assert end.usage.cached_tokens >= len(history) - 1
    assert end.usage.cached_source == "disk"
    after.close_all()


def test_nothing_is_written_twice_and_a_turn_adds_only_what_is_new() -> None:
    store = FakeStore()
    world = world_on(store, config())
    name = world.service.open("talk")
    world.run_turn(name, [1] * 42, 3)
    settle(world)
    first = store.puts
    assert first == told(world).ahead == len(store.pages) == 11
    world.run_turn(name, [2] * 5, 2)
    settle(world)
    assert store.puts - first == 2, "what has become whole, and the new tail"
    world.service.rewind(name, turn=0)
    settle(world)
    assert store.puts - first == 2


def test_a_conversation_that_is_gone_on_with_or_closed_is_not_copied() -> None:
    store = FakeStore()
    store.num_unwritten = lambda: 1  # type: ignore[method-assign]  # a disk that is busy
    world = world_on(store, config())
    names = [world.service.open(f"talk{index}") for index in range(3)]
    for name in names:
        world.run_turn(name, [1] * 20, 3)
    assert world.service.wake_in() == QUEUE_PAUSE_S
    assert world.slots.slot_statistics().num_to_copy == 3
    world.service.close(names[0])
    world.slots.demote(names[1])
    record = world.turn(names[2], [4], 3)
    world.step()
    assert world.slots.slot_statistics().num_to_copy == 0
    assert told(world).ahead == 0
    world.run()
    assert record.end is not None


def test_a_little_at_a_time_and_less_while_others_run() -> None:
    store = FakeStore()
    world = world_on(store, config(pages=600))
    name = world.service.open("talk")
    world.run_turn(name, [1] * 2000, 3)
    page = world.backend.page_bytes(Pool.FULL)
    assert told(world).ahead * page <= AHEAD_BYTES + page
    copied, pauses = told(world).ahead, 0
    world.submit([5] * 40, 30)
    while world.service.has_work:
        now = world.clock.now
        world.step()
        more = told(world).ahead - copied
        copied += more
        pauses += more == 0
        assert more * page <= BUSY_BYTES + page
        assert world.clock.now - now < BUSY_PAUSE_S
    assert pauses > 0
    settle(world)
    assert told(world).ahead >= 500


def test_what_computing_would_beat_is_not_written() -> None:
    store = FakeStore(seconds_per_byte=1.0)
    world = world_on(store, config())
    world.world.seconds_per_token = 1e-3
    world.run_turn(world.service.open("talk"), [1] * 42, 3)
    settle(world)
    assert (store.puts, told(world).ahead) == (0, 0)
    assert told(world).declined == 11


def test_a_store_without_room_is_left_alone() -> None:
    store = FakeStore()
    store.odds.pages_max = 5
    world = world_on(store, config())
    name = world.service.open("talk")
    world.run_turn(name, [1] * 42, 3)
    settle(world)
    assert store.puts == 5
    assert store.evictions == 0


def test_unless_it_is_asked_for_nothing_is_written_ahead() -> None:
    store = FakeStore()
    world = SessionWorld(WorldConfig(page_size=4, num_pages=64, context=256), pages=store)
    world.run_turn(world.service.open("talk"), [1] * 42, 3)
    assert world.service.wake_in() is None
    assert store.puts == 0


# -- out


def names_of(world: SessionWorld, name: str) -> KvNames:
    tokens = np.array(world.history(name), dtype=np.int32)
    names = world.slots.copy_out(CacheKey("", name), tokens)
    assert names is not None
    return names


@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("where", ["kept", "in the tree", "in the store", "lost"])
def test_what_is_to_leave_is_in_the_store_wherever_it_was(where: str, window: int) -> None:
    store = FakeStore()
    shape = config(window=window)
    world = SessionWorld(replace(shape, tier_ahead=False), pages=store)
    name = world.service.open("talk")
    world.run_turn(name, [1, 2, 3] * 14, 3)
    if where == "in the tree":
        world.slots.demote(name)
    elif where != "kept":
        world.slots.save(lambda: False)
        world.slots.flush() if where == "lost" else None
    names = names_of(world, name)
    while names.missing:
        names = names_of(world, name)
    if where == "lost":
        assert (names.full, names.tail, store.pages) == ((), None, {})
        return
    history = world.history(name)
    assert len(names.full) * 4 + names.tail_len >= len(history) - 1
    assert all(store.has(Pool.FULL, one) for one in (*names.full, names.tail) if one)
    key, tokens = CacheKey("", name), np.array(history, dtype=np.int32)
    again = world.slots.inner.kv_names(key, tokens, len(names.full), names.tail_len)
    assert again is not None
    assert (again.full, again.tail, again.windows_from) == (names.full, names.tail, names.windows_from)
    if window:
        assert all(store.has(Pool.SWA, one) for one in names.full[names.windows_from :])
    world.close_all()
