"""Rows of the table of scenarios with known right answers that need no scheduler, over both inner caches."""

import pytest
from tests.support.slots import LINEAGE, Freed, Lengths, Rig, holding_of

from sojourn.audit.census import census
from sojourn.cache.protocol import CacheRequest, Outcome, Verdict
from sojourn.cache.release import release_kv_cache
from sojourn.core.step import Pool

NONE = range(0)
KINDS = ("radix", "none")
both_kinds = pytest.mark.parametrize("kind", KINDS)


def finish(rig: Rig, request: CacheRequest, finished_len: int) -> None:
    release_kv_cache(rig.cache, request, Outcome(Verdict.FINISHED, finished_len))


def check(rig: Rig) -> None:
    census(rig.cache)
    if rig.radix:
        assert rig.leases() == len(rig.book.holdings)


def overshoot(
    rig: Rig, comm: int, alloc: int, cur: int, want: Lengths, full: range, swa: range, *, resumable: bool
) -> None:
    request = rig.running(comm=comm, alloc=alloc, cur=cur, num_prompt=26, num_tokens=40)
    with Freed(rig, holding_of(request)) as freed:
        finish(rig, request, 12)
    freed.is_exactly(full, swa)
    assert request.num_tokens == 26 + 12
    assert Lengths.of(rig.idle_holding()) == want
    following = rig.request(60)
    assert (rig.cache.match_prefix(following.key, following.known).source == "session") == resumable
    check(rig)


@pytest.mark.scenario("A1")
@both_kinds
@pytest.mark.parametrize(
    ("size", "cur", "want", "full", "swa"),
    [
        (1, 42, Lengths(38, 38, 38, 0), range(38, 44), range(42, 44)),
        (16, 32, Lengths(38, 38, 32, 0), NONE, NONE),
    ],
)
def test_a1_overshoot_past_the_window(kind: str, size: int, cur: int, want: Lengths, full: range, swa: range) -> None:
    overshoot(Rig(kind, size), 40, 44, cur, want, full, swa, resumable=False)


@pytest.mark.scenario("A2")
@both_kinds
@pytest.mark.parametrize(("size", "freed"), [(1, range(38, 44)), (16, NONE)])
def test_a2_overshoot(kind: str, size: int, freed: range) -> None:
    overshoot(Rig(kind, size), 40, 44, 0, Lengths(38, 38, 0, 0), freed, freed, resumable=True)


@both_kinds
@pytest.mark.parametrize("cur", [0, 42])
def test_trim_overshoot_postcondition(kind: str, cur: int) -> None:
    """A2 and A1 at page size 1: 38..43 leave the full pool exactly once."""
    rig = Rig(kind, 1)
    request = rig.running(comm=40, alloc=44, cur=cur, num_prompt=26, num_tokens=40)
    with Freed(rig, holding_of(request)) as freed:
        finish(rig, request, 12)
    assert freed.positions[Pool.FULL] == list(range(38, 44))
    holding = rig.idle_holding()
    assert max(holding.kv_allocated_len, holding.kv_committed_len, holding.swa_evicted_seqlen) <= 38


@pytest.mark.scenario("A3")
@both_kinds
@pytest.mark.parametrize(
    ("size", "full", "swa"), [(1, range(38, 64), range(48, 64)), (16, range(48, 64), range(48, 64))]
)
def test_a3_overshoot_of_pages(kind: str, size: int, full: range, swa: range) -> None:
    overshoot_rig = Rig(kind, size)
    request = overshoot_rig.running(comm=52, alloc=64, cur=48, num_prompt=26, num_tokens=52)
    with Freed(overshoot_rig, holding_of(request)) as freed:
        finish(overshoot_rig, request, 12)
    freed.is_exactly(full, swa)
    assert Lengths.of(overshoot_rig.idle_holding()) == Lengths(38, 38, 38, 0)
    following = overshoot_rig.request(60)
    assert overshoot_rig.cache.match_prefix(following.key, following.known).source != "session"
    check(overshoot_rig)


@pytest.mark.scenario("A4")
@both_kinds
@pytest.mark.parametrize(("size", "freed"), [(1, range(119, 120)), (16, NONE)])
def test_a4_retried_turn(kind: str, size: int, freed: range) -> None:
    rig = Rig(kind, size)
    rig.idle(comm=120, alloc=120, prot=96, settled=120)
    request = rig.request(120)
    with Freed(rig, rig.idle_holding()) as seen:
        assert rig.cache.admit(request, 120)
    assert request.prefix_len == 119
    seen.is_exactly(freed, freed)
    check(rig)


@pytest.mark.scenario("A5")
@both_kinds
@pytest.mark.parametrize(("size", "freed"), [(1, range(38, 44)), (16, NONE)])
def test_a5_speculative_tail(kind: str, size: int, freed: range) -> None:
    rig = Rig(kind, size)
    rig.idle(comm=38, alloc=44, settled=38)
    request = rig.request(60)
    with Freed(rig, rig.idle_holding()) as seen:
        assert rig.cache.admit(request, 60)
    assert request.prefix_len == 38
    seen.is_exactly(freed, freed)
    check(rig)


@pytest.mark.scenario("A6")
@both_kinds
@pytest.mark.parametrize(("size", "prot", "freed"), [(1, 50, range(50, 65)), (16, 48, range(64, 65))])
def test_a6_abort(kind: str, size: int, prot: int, freed: range) -> None:
    rig = Rig(kind, size)
    request = rig.running(comm=60, alloc=65, prot=prot, settled=50, num_prompt=56, num_tokens=61)
    with Freed(rig, holding_of(request)) as seen:
        release_kv_cache(rig.cache, request, Outcome(Verdict.ABORTED))
    seen.is_exactly(freed, freed)
    assert Lengths.of(rig.idle_holding()) == Lengths(50, 50, 0, prot if kind == "radix" else 0)
    following = rig.request(70)
    assert rig.cache.admit(following, 70)
    assert following.prefix_len == 50
    check(rig)


@pytest.mark.scenario("A7")
@both_kinds
@pytest.mark.parametrize("size", [1, 16])
def test_a7_close(kind: str, size: int) -> None:
    rig = Rig(kind, size)
    rig.idle(comm=53, alloc=53, prot=48, settled=53)
    assert rig.leases() == (kind == "radix")
    with Freed(rig, rig.idle_holding()) as seen:
        own = rig.cache.release_session(LINEAGE)
    freed = range(48 if kind == "radix" else 0, 53)
    seen.is_exactly(freed, freed)
    assert own == 2 * (-(-53 // size) - (48 // size if kind == "radix" else 0))
    assert rig.leases() == 0
    check(rig)
    rig.cache.flush()
    assert all(pool.free + pool.reserved == pool.total for pool in rig.cache.statistics())


@pytest.mark.scenario("A8")
@both_kinds
@pytest.mark.parametrize(("size", "freed"), [(1, range(37, 44)), (16, NONE)])
def test_a8_finish_before_the_last_token_is_computed(kind: str, size: int, freed: range) -> None:
    rig = Rig(kind, size)
    request = rig.running(comm=37, alloc=44, num_prompt=26, num_tokens=38)
    with Freed(rig, holding_of(request)) as seen:
        finish(rig, request, 12)
    seen.is_exactly(freed, freed)
    assert Lengths.of(rig.idle_holding()) == Lengths(37, 37, 0, 0)
    following = rig.request(50)
    assert rig.cache.admit(following, 50)
    assert following.prefix_len == 37  # 38 tokens are history: one is computed again
    check(rig)


@pytest.mark.scenario("A8b")
@both_kinds
@pytest.mark.parametrize(("size", "freed"), [(1, range(38, 44)), (16, NONE)])
def test_a8b_finish_after_it(kind: str, size: int, freed: range) -> None:
    rig = Rig(kind, size)
    request = rig.running(comm=38, alloc=44, num_prompt=26, num_tokens=38)
    with Freed(rig, holding_of(request)) as seen:
        finish(rig, request, 12)
    seen.is_exactly(freed, freed)
    assert Lengths.of(rig.idle_holding()) == Lengths(38, 38, 0, 0)
    check(rig)


@pytest.mark.scenario("A9")
@both_kinds
@pytest.mark.parametrize(("size", "cur"), [(1, 68), (16, 64)])
def test_a9_slide_then_close(kind: str, size: int, cur: int) -> None:
    rig = Rig(kind, size, window=32)
    rig.idle(comm=100, alloc=100, settled=100)
    rig.book.slide(rig.idle_holding(), 100)
    holding = rig.idle_holding()
    assert Lengths.of(holding) == Lengths(100, 100, cur, 0)
    swa = holding.lists[Pool.SWA].pages
    assert not swa[: cur // size].any()
    assert swa[cur // size :].all()
    check(rig)
    with Freed(rig, holding) as seen:
        rig.cache.release_session(LINEAGE)
    seen.is_exactly(range(100), range(cur, 100))
    check(rig)


@pytest.mark.scenario("A10")
@both_kinds
@pytest.mark.parametrize("size", [1, 16])
def test_a10_busy_counts_once(kind: str, size: int) -> None:
    rig = Rig(kind, size)
    rig.idle(comm=120, alloc=120, prot=96, settled=120)
    request = rig.request(128)
    assert rig.cache.admit(request, 128)
    assert rig.cache.session_held_tokens() == 0
    assert rig.cache.session_held_swa_tokens() == 0
    assert rig.cache.session_held_req_count() == 0
    full, _ = rig.cache.statistics()
    assert full.idle == 0
    assert full.running * size == (32 if kind == "radix" else 128)
    check(rig)


@pytest.mark.scenario("A19")
@both_kinds
@pytest.mark.parametrize(
    ("size", "settled_pages", "committed_pages", "freed"),
    [
        (1, range(968, 1000), range(1168, 1200), range(1000, 1200)),
        (16, range(60, 63), range(73, 75), range(1008, 1200)),
    ],
)
def test_a19_abort_keeps_the_window_behind_the_start(
    kind: str, size: int, settled_pages: range, committed_pages: range, freed: range
) -> None:
    rig = Rig(kind, size, window=32)
    first = rig.request(1000)
    assert rig.cache.admit(first, 1000)
    rig.cache.commit(first, 1000)
    finish(rig, first, 0)
    turn = rig.request(1100, 1200)
    assert rig.cache.admit(turn, 1100)
    rig.cache.commit(turn, 1100)
    assert rig.cache.grow(turn, 1200)
    rig.cache.commit(turn, 1200)
    assert rig.cache.grow(turn, 1200)
    holding = holding_of(turn)
    live = [int(index) for index in holding.lists[Pool.SWA].pages.nonzero()[0]]
    assert live == [*settled_pages, *committed_pages]
    with Freed(rig, holding) as seen:
        release_kv_cache(rig.cache, turn, Outcome(Verdict.ABORTED))
    assert seen.positions[Pool.FULL] == list(freed)
    following = rig.request(1010)
    assert rig.cache.admit(following, 1010)
    assert following.prefix_len == 1000
    check(rig)


@pytest.mark.scenario("A20")
@pytest.mark.parametrize(("size", "pages"), [(1, 64), (16, 4)])
def test_a20_a_shared_prompt_is_the_trees_once(size: int, pages: int) -> None:
    rig = Rig("radix", size, publishes=True)
    turns = [rig.request(64 + 8, lineage=lineage) for lineage in ("s1", "s2")]
    for mark, turn in enumerate(turns):
        turn.tokens[64:72] = 2000 + mark
        assert rig.cache.admit(turn, 72)
    for turn in turns:  # both computed it; the second finds the first's pages as it publishes
        rig.cache.commit(turn, 72)
        rig.cache.cache_unfinished_req(turn)
    first, second = (holding_of(turn).lists[Pool.FULL].pages[:pages] for turn in turns)
    assert (first == second).all()
    assert rig.radix is not None
    owners = rig.book.ledgers[Pool.FULL].owners
    assert (owners[first] == rig.radix.account).all()
    for turn in turns:
        finish(rig, turn, 0)
    check(rig)
    tree = dict(census(rig.cache).pools[Pool.FULL].terms)["tree"]
    assert tree == pages + 2 * ((72 - 1) // size - pages)


@pytest.mark.scenario("A21")
@pytest.mark.parametrize(("size", "prot"), [(1, 47), (16, 32)])
def test_a21_empty_input_turn(size: int, prot: int) -> None:
    rig = Rig("radix", size, publishes=True)
    turn = rig.request(48)
    assert rig.cache.admit(turn, 48)
    rig.cache.commit(turn, 48)
    finish(rig, turn, 0)
    assert Lengths.of(rig.idle_holding()) == Lengths(48, 48, 0, prot)
    again = rig.request(48)
    assert rig.cache.admit(again, 48)
    assert again.prefix_len == 47
    assert holding_of(again).cache_protected_len == prot
    check(rig)


@pytest.mark.scenario("A21")
@pytest.mark.parametrize("size", [1, 16])
def test_a21_over_none(size: int) -> None:
    rig = Rig("none", size)
    turn = rig.request(48)
    assert rig.cache.admit(turn, 48)
    rig.cache.commit(turn, 48)
    finish(rig, turn, 0)
    again = rig.request(48)
    assert rig.cache.admit(again, 48)
    assert again.prefix_len == 47
    check(rig)
