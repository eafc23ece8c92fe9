"""KV that leaves with a session and comes with one, at the engine: named for whoever brings it, or refused whole."""

from dataclasses import replace

import msgspec
import pytest
from tests.support.fake_store import FakeStore, Odds
from tests.support.session_world import SessionWorld
from tests.support.world import WorldConfig

from sojourn.api import wire_kv
from sojourn.api.copies import token_bytes
from sojourn.api.kv import CHANGED, FOREIGN, NO_TIER, UNFIT, keep, put
from sojourn.core.errors import ClientError
from sojourn.core.step import MODEL_POOLS

SHAPE = WorldConfig(page_size=4, num_pages=64, context=256, step_tokens_max=64, chunk_tokens_max=32)


def left(store: FakeStore, window: int = 0) -> tuple[SessionWorld, wire_kv.PutKv]:
    """A session of tenant a, and what its file has of its KV."""
    world = SessionWorld(replace(SHAPE, window=window), pages=store)
    name = world.service.open("talk", namespace="a")
    world.run_turn(name, [1, 2, 3] * 14, 3)
    kept = keep(world.service, world.slots, name, wire_kv.KeepKv("talk", "a", len(world.history(name))))
    assert (kept.missing, kept.epoch) == (0, 0)
    names = [*kept.full, *([kept.tail] if kept.tail else [])]
    pages = [
        wire_kv.KvPage(pool, index, store.pages[MODEL_POOLS[pool], name])
        for pool in range(len(kept.page_bytes))
        for index, name in enumerate(names)
        if pool == 0 or index >= kept.windows_from
    ]
    history = wire_kv.digest(token_bytes(world.service.copy("talk").tokens[: 4 * len(kept.full) + kept.tail_len]))
    return world, wire_kv.PutKv("talk", "b", kept.kv_format, len(kept.full), kept.tail_len, history, pages)


@pytest.mark.parametrize("window", [0, 9])
def test_pages_are_named_for_whoever_brings_them(window: int) -> None:
    one, two = FakeStore(), FakeStore()
    world, command = left(one, window)
    stored = world.service.copy("talk")
    other = SessionWorld(replace(SHAPE, window=window), pages=two)
    for tenant in ("b", "c", "a"):
        other.service.take_in(replace(stored, session_id=f"talk of {tenant}", namespace=tenant))
    assert put(other.service, other.slots, "talk of b", command) == wire_kv.KvTaken(len(command.pages), None)
    assert not one.pages.keys() & two.pages.keys()
    undisturbed = world.run_turn("talk", [9, 8], 6)
    ends = {tenant: other.run_turn(f"talk of {tenant}", [9, 8], 6) for tenant in ("c", "a", "b")}
    assert {tenant: end.usage.cached_tokens for tenant, end in ends.items() if tenant != "b"} == {"c": 0, "a": 0}
    assert ends["b"].usage.cached_tokens >= len(stored.tokens) - 1
    assert ends["b"].usage.cached_source == "disk"
    assert all(end.output_ids == undisturbed.output_ids for end in ends.values())


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"kv_format": b"another"}, FOREIGN),
        ({"num_pages": 12}, UNFIT),
        ({"tail_len": 2}, UNFIT),
        ({"tail_len": 4}, UNFIT),
        ({"history": wire_kv.digest(b"")}, CHANGED),
        ({"pages": [wire_kv.KvPage(0, 0, b"short")]}, UNFIT),
        ({"pages": [wire_kv.KvPage(1, 0, b"")]}, UNFIT),
        ({"pages": [wire_kv.KvPage(0, 99, b"")]}, UNFIT),
    ],
)
def test_what_does_not_fit_is_refused_whole(changed: dict[str, object], refusal: str) -> None:
    world, command = left(FakeStore())
    assert (len(command.pages), command.num_pages, command.tail_len) == (11, 11, 0)
    store = FakeStore()
    other = SessionWorld(SHAPE, pages=store)
    other.service.take_in(world.service.copy("talk"))
    wrong = msgspec.structs.replace(command, **changed)
    assert put(other.service, other.slots, "talk", wrong) == wire_kv.KvTaken(0, refusal)
    assert not store.pages


def test_a_name_that_was_closed_and_opened_over_another_history_takes_no_kv_of_the_first() -> None:
    world, command = left(FakeStore())
    store = FakeStore()
    other = SessionWorld(SHAPE, pages=store)
    other.service.take_in(world.service.copy("talk"))
    first = msgspec.structs.replace(command, pages=command.pages[-1:])
    assert put(other.service, other.slots, "talk", first).refusal is None
    other.service.close("talk")
    other.service.open("talk", namespace="a")
    other.run_turn("talk", [3, 2, 1] * 14, 3)
    assert put(other.service, other.slots, "talk", command) == wire_kv.KvTaken(0, CHANGED)
    assert len(store.pages) == 1


def test_what_the_store_does_not_take_now_is_offered_again() -> None:
    world, command = left(FakeStore())
    store = FakeStore(odds=Odds(drop=0.5))
    other = SessionWorld(SHAPE, pages=store)
    other.service.take_in(world.service.copy("talk"))
    pages, asked = command.pages, 0
    while pages:
        taken = put(other.service, other.slots, "talk", msgspec.structs.replace(command, pages=pages))
        assert taken.refusal is None
        pages = pages[taken.count :]
        asked += 1
    assert asked == store.drops + 1 > 1
    assert len(store.pages) == len(command.pages)


def test_without_a_tier_nothing_leaves_and_nothing_comes_in() -> None:
    world = SessionWorld(SHAPE)
    world.run_turn(world.service.open("talk"), [1] * 9, 3)
    with pytest.raises(ClientError) as caught:
        keep(world.service, world.slots, "talk", wire_kv.KeepKv("talk", "", 5))
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "kv", "no_disk_cache")
    assert put(world.service, world.slots, "talk", wire_kv.PutKv("talk", "", b"", 0, 0, b"", [])) == wire_kv.KvTaken(
        0, NO_TIER
    )
