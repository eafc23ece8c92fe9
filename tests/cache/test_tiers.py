"""The tier under the tree: what was evicted comes back to the bit, others pass meanwhile, and no misfortune changes an answer."""

from collections.abc import Sequence

import numpy as np
import pytest

from sojourn.cache.node import Node
from sojourn.cache.tiers_back import PATIENCE_S
from sojourn.cache.tiers_names import Namer, joined
from sojourn.cache.tiers_store import StoreTier
from sojourn.cache.tree import Tree
from sojourn.core.step import Pool
from sojourn.core.tier import TierStatistics
from sojourn.engine.events import FinishedEvent
from sojourn.pages.sizing import PoolLayout
from tests.support.fake_store import FakeStore, Odds
from tests.support.session_world import SessionWorld
from tests.support.world import WorldConfig, check_identity

NEVER = 10**9  # calls until a reading is done


def config(page_size: int = 4, window: int = 0, pages: int = 64, *, ahead: bool = False) -> WorldConfig:
    return WorldConfig(
        page_size=page_size, window=window, num_pages=pages, context=pages * page_size, step_tokens_max=64,
        chunk_tokens_max=32, tier_ahead=ahead,
    )  # fmt: skip


def world_on(store: FakeStore, shape: WorldConfig, depth: int = 0) -> SessionWorld:
    return SessionWorld(shape, pages=store, depth=depth)


def told(world: SessionWorld) -> TierStatistics:
    statistics = world.slots.tier_statistics()
    assert statistics is not None
    return statistics


def history_on(world: SessionWorld, prompt: Sequence[int], new: int = 9) -> list[int]:
    name = world.service.open("talk")
    world.run_turn(name, prompt, new)
    return world.history(name)


def save(world: SessionWorld) -> None:
    world.slots.save(lambda: False)
    check_identity(world.slots)


def resume(world: SessionWorld, history: Sequence[int], new: Sequence[int] = (1, 2, 3)) -> FinishedEvent:
    """A session that has the history, in an engine that does not have its KV."""
    return world.run_turn(world.service.open("talk"), [*history, *new], 6)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("window", [0, 3, 9, 40])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("length", [3, 30, 61])
def test_a_session_comes_back_whole_in_another_engine(page_size: int, window: int, length: int, depth: int) -> None:
    """`cached >= saved - 1`, whatever the page size: the last tokens' page was kept, too."""
    store = FakeStore()
    shape = config(page_size, window, pages=160 // page_size)
    before = world_on(store, shape, depth)
    history = history_on(before, [index % 7 for index in range(length)])
    save(before)
    after = world_on(store, shape, depth)
    end = resume(after, history)
    assert end.usage.cached_tokens >= len(history) - 1
    assert end.usage.cached_source == "disk"
    assert told(after).fetches == 1
    after.close_all()


def test_what_the_pool_has_no_room_for_comes_back_when_it_is_asked_for() -> None:
    store = FakeStore()
    world = world_on(store, config(pages=24))
    names = [world.service.open() for _ in range(4)]
    for index, name in enumerate(names):
        world.run_turn(name, [index] * 40, 3)
    for name in names:
        saved = len(world.history(name))
        end = world.run_turn(name, [5, 6], 3)
        assert end.usage.cached_tokens >= saved - 1
    assert told(world).fetches >= 2
    assert told(world).fetched_tokens > 0
    world.close_all()


def test_plain_requests_and_forks_find_whole_pages() -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [1, 2, 3] * 9)
    save(before)
    after = world_on(store, config())
    record = after.submit([*history, 1, 2], 4)
    after.run()
    assert record.end is not None
    assert (record.end.usage.cached_tokens, record.end.usage.cached_source) == ((len(history) - 1) // 4 * 4, "disk")
    record = after.submit([*history, 1, 2], 4)
    after.run()
    assert record.end is not None
    assert record.end.usage.cached_source == "prefix"


def test_only_the_windows_before_the_point_of_return_are_read() -> None:
    store = FakeStore()
    shape = config(page_size=4, window=8)
    before = world_on(store, shape)
    history = history_on(before, [3] * 60, 4)
    save(before)
    kept = store.statistics().num_pages
    assert kept[Pool.SWA] < kept[Pool.FULL]
    after = world_on(store, shape)
    assert resume(after, history).usage.cached_tokens >= len(history) - 1
    assert 0 < told(after).fetched_pages <= len(history) // 4 + 8 // 4 + 1


def test_without_a_live_window_nothing_is_fetched() -> None:
    store = FakeStore()
    shape = config(page_size=4, window=8)
    before = world_on(store, shape)
    history = history_on(before, [3] * 60, 4)
    save(before)
    for page in [page for page in store.pages if page[0] is Pool.SWA]:
        del store.pages[page]
    after = world_on(store, shape)
    assert resume(after, history).usage.cached_tokens == 0
    assert told(after).fetches == 0


@pytest.mark.parametrize("missing", [0, 3, -1])
def test_a_page_that_is_damaged_ends_the_fetch_and_the_rest_is_computed(missing: int) -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [2, 3, 4] * 12)
    save(before)
    after = world_on(store, config())
    names = Namer(joined(b"fake", after.backend.kv_format.encode()), 4).chain("", np.array(history, dtype=np.int32))
    place = names[: len(history) // 4 - 1][missing]
    read = store.read

    def damaged(pool: Pool, names: tuple[bytes, ...], page_bytes: int) -> object:
        store.pages.pop((Pool.FULL, place), None)  # found when it is read, as on a disk
        return read(pool, names, page_bytes)

    store.read = damaged  # type: ignore[method-assign, assignment]
    end = resume(after, history)
    assert end.usage.cached_tokens == names.index(place) * 4
    assert (told(after).failed, told(after).slow) == (1, 0)
    after.close_all()


def test_a_disk_that_does_not_answer_is_not_waited_for() -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [2, 3, 4] * 12)
    save(before)
    store.odds = Odds(calls_max=NEVER)
    after = world_on(store, config())
    began = after.clock.now
    end = resume(after, history)
    assert end.usage.cached_tokens == 0
    assert told(after).slow == 1
    assert PATIENCE_S < after.clock.now - began < 2 * PATIENCE_S
    assert store.waits > 0


def test_others_pass_a_request_that_waits_for_the_disk() -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [2, 3, 4] * 12)
    save(before)
    store.odds = Odds(calls_max=NEVER)
    after = world_on(store, config())
    name = after.service.open()
    waiting = after.turn(name, [*history, 1], 4)
    others = [after.submit([9] * 50, 4), after.submit([8] * 20, 4)]
    for _ in range(60):
        after.step()
    assert all(other.end is not None for other in others)
    assert waiting.end is None
    assert not waiting.tokens
    assert after.service.abort(name)
    after.run()
    assert told(after).fetches == 1
    after.close_all()


def test_who_waits_for_others_asks_the_store_once() -> None:
    """Naming the pages of a long prompt costs as much as a step."""
    store = FakeStore()
    world = world_on(store, config(pages=16))
    world.submit([1] * 50, 12)
    world.step(2)
    waiting = world.submit([2] * 50, 2)
    world.step(3)
    asked = store.asked
    assert asked > 0
    world.step(5)
    assert not waiting.tokens
    assert store.asked == asked
    world.run()


def test_a_request_that_is_aborted_gives_its_place_at_the_disk_to_the_next() -> None:
    store = FakeStore()
    before = world_on(store, config(pages=200))
    histories = [history_on_named(before, f"s{index}", [index] * 30) for index in range(5)]
    save(before)
    store.odds = Odds(calls_max=NEVER)
    after = world_on(store, config(pages=200))
    for index, history in enumerate(histories):
        after.turn(after.service.open(f"s{index}"), [*history, 1], 2)
    after.step(5)
    assert told(after).fetches == 2
    for index in (0, 1):
        after.service.abort(f"s{index}")
    after.step(3)
    assert told(after).fetches == 4
    after.run()
    after.close_all()


def test_of_a_chain_that_the_queue_has_no_room_for_the_beginning_is_kept() -> None:
    store = FakeStore()
    world = world_on(store, config())
    world.submit([1, 2, 3] * 14, 2)
    world.run()
    radix = world.world.radix
    assert radix is not None
    tokens = np.array([1, 2, 3] * 14, dtype=np.int32)
    names = Namer(joined(b"fake", world.backend.kv_format.encode()), 4).chain("", tokens)
    store.room = 3 * world.backend.page_bytes(Pool.FULL)
    assert radix.make_room((64,))
    assert [store.has(Pool.FULL, name) for name in names] == [index < 3 for index in range(10)]
    assert told(world).dropped + told(world).store.dropped == 7
    assert list(store.pages)[-1] == (Pool.FULL, names[0]), "the end goes first"


def test_the_last_tokens_of_all_are_saved_while_there_is_time() -> None:
    store = FakeStore(room=0)
    shape = config(pages=400)
    before = world_on(store, shape)
    histories = [history_on_named(before, f"s{index}", [index] * 30) for index in range(6)]
    save(before)
    assert store.drops == 0
    after = world_on(store, shape)
    for index, history in enumerate(histories):
        end = after.run_turn(after.service.open(f"s{index}"), [*history, 1], 2)
        assert end.usage.cached_tokens >= len(history) - 1
    after.close_all()


def history_on_named(world: SessionWorld, name: str, prompt: Sequence[int]) -> list[int]:
    world.service.open(name)
    world.run_turn(name, prompt, 5)
    return world.history(name)


def test_pages_that_are_faster_computed_are_neither_written_nor_read() -> None:
    store = FakeStore(seconds_per_byte=1.0)
    world = world_on(store, config())
    radix = world.world.radix
    assert radix is not None
    radix._tier = StoreTier(store, world.backend, b"fake", PoolLayout(4), world.clock, lambda: 0.001)
    history_on(world, [1] * 40)
    save(world)
    assert (store.puts, told(world).declined > 0) == (0, True)


def test_a_fetch_that_would_take_longer_than_computing_is_declined() -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [1] * 40)
    save(before)
    store.seconds_per_byte = 1.0
    after = world_on(store, config())
    radix = after.world.radix
    assert radix is not None
    radix._tier = StoreTier(store, after.backend, b"fake", PoolLayout(4), after.clock, lambda: 0.001)
    assert resume(after, history).usage.cached_tokens == 0
    assert (told(after).fetches, store.reads) == (0, 0)
    assert told(after).declined > 0


@pytest.mark.parametrize("other", ["model", "namespace"])
def test_another_model_or_namespace_finds_nothing(other: str) -> None:
    store = FakeStore()
    before = world_on(store, config())
    history = history_on(before, [1] * 40)
    save(before)
    after = world_on(store, config())
    radix = after.world.radix
    assert radix is not None
    if other == "model":
        radix._tier = StoreTier(store, after.backend, b"another", PoolLayout(4), after.clock, lambda: None)
    name = after.service.open(namespace="other" if other == "namespace" else "")
    assert after.run_turn(name, [*history, 1], 3).usage.cached_tokens == 0


def test_a_flush_forgets_what_the_tier_has_and_gives_it_nothing() -> None:
    store = FakeStore()
    world = world_on(store, config())
    history_on(world, [1] * 40)
    save(world)
    assert store.pages
    world.slots.flush()
    assert not store.pages
    world.close_all()


def test_what_is_kept_already_is_not_copied_again() -> None:
    store = FakeStore()
    world = world_on(store, config())
    history_on(world, [1] * 40)
    save(world)
    puts = store.puts
    save(world)
    assert store.puts == puts
    assert told(world).known > 0


def test_saving_ends_when_it_is_late() -> None:
    store = FakeStore()
    world = world_on(store, config())
    history_on(world, [1] * 40)
    calls = iter(range(100))
    world.slots.save(lambda: next(calls) > 4)
    assert 0 < store.puts <= 5


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_turn_that_was_running_at_the_end_costs_its_session_nothing(steps: int) -> None:
    store = FakeStore()
    before = world_on(store, config(), depth=1)
    history = history_on(before, [4, 5] * 15)
    before.turn("talk", [7] * 50, 20)
    before.step(steps)
    before.world.loop.shut_down()
    before.slots.save(lambda: False)
    after = world_on(store, config())
    assert resume(after, history).usage.cached_tokens >= len(history) - 1
    after.close_all()


def test_a_name_says_everything_before_it() -> None:
    namer = Namer(b"model", 4)
    tokens = np.arange(12, dtype=np.int32)
    chain = namer.chain("", tokens)
    assert len(set(chain)) == 3
    assert namer.chain("", tokens[:8]) == chain[:2]
    changed = tokens.copy()
    changed[0] = 99
    assert not set(namer.chain("", changed)) & set(chain)
    assert not set(namer.chain("other", tokens)) & set(chain)
    assert not set(Namer(b"model2", 4).chain("", tokens)) & set(chain)
    assert not set(Namer(b"mode", 4).chain("l", tokens)) & set(chain), "lengths stand between what a name says"
    assert joined(b"ab", b"c") != joined(b"a", b"bc")
    tails = {namer.tail(chain[0], tokens[4 : 4 + count]) for count in range(1, 5)}
    assert len(tails) == 4
    assert namer.tail(chain[0], tokens[4:8]) == chain[1]


def test_the_chain_of_a_node_is_that_of_its_tokens_however_the_tree_was_shaped() -> None:
    tree = Tree(PoolLayout(2))
    namer = Namer(b"model", 2)
    tokens = np.arange(16, dtype=np.int32)
    leaf = tree.add_leaf(tree._root("n"), tokens.copy(), np.arange(1, 9, dtype=np.int32), np.zeros(0, dtype=np.int32))
    expected = namer.chain("n", tokens)
    assert Namer(b"model", 2).of_node(leaf) == expected
    assert namer.of_node(leaf) == expected
    upper = tree.split_at(leaf, 3)
    assert namer.of_node(leaf) == expected
    assert namer.of_node(upper) == expected[:3]
    tree.trim_leaf(leaf, 2)
    assert namer.of_node(leaf) == expected[:6]
    assert isinstance(leaf, Node)
