"""The session cache by example: what stays between turns, what goes when pages are short, what an end leaves behind."""

from collections.abc import Hashable

import numpy as np
import pytest
from tests.support.slots import LINEAGE, Rig, holding_of

from sojourn.audit.census import census
from sojourn.cache.protocol import CacheKey, CacheRequest, Outcome, Verdict
from sojourn.cache.release import release_kv_cache
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import RequestId, StepId
from sojourn.core.step import Pool

both_kinds = pytest.mark.parametrize("kind", ["radix", "none"])
sizes = pytest.mark.parametrize("size", [1, 4, 16])


def request(
    rig: Rig, length: int, lineage: Hashable = LINEAGE, salt: int = 0, num_prompt: int | None = None
) -> CacheRequest:
    """Tokens are a function of `salt` and the position; equal salts continue each other."""
    rig._count += 1
    tokens = ((np.arange(4096) * 13 + 101 * salt) % 1009).astype(np.int32)
    return CacheRequest(RequestId(f"q{rig._count}"), CacheKey("", lineage), num_prompt or length, tokens, length)


def admit(rig: Rig, turn: CacheRequest) -> CacheRequest:
    assert rig.cache.admit(turn, turn.num_tokens)
    rig.cache.commit(turn, turn.num_tokens)
    return turn


def finish(rig: Rig, turn: CacheRequest, finished_len: int = 0) -> None:
    release_kv_cache(rig.cache, turn, Outcome(Verdict.FINISHED, finished_len))


def converse(rig: Rig, length: int, lineage: Hashable = LINEAGE, salt: int = 0) -> None:
    finish(rig, admit(rig, request(rig, length, lineage, salt)))


def source(rig: Rig, turn: CacheRequest) -> tuple[int, str]:
    match = rig.cache.match_prefix(turn.key, turn.known)
    return match.prefix_len, match.source


@both_kinds
@sizes
def test_a_turn_resumes_where_the_last_one_ended(kind: str, size: int) -> None:
    rig = Rig(kind, size, window=8, publishes=True)
    converse(rig, 37)
    turn = request(rig, 50)
    assert source(rig, turn) == (37, "session")
    admit(rig, turn)
    assert turn.prefix_len == 37
    assert rig.cache.slot_statistics().resumes == 1
    census(rig.cache)


@both_kinds
def test_the_holding_is_in_one_place(kind: str) -> None:
    rig = Rig(kind, 4, publishes=True)
    turn = admit(rig, request(rig, 30))
    slot = rig.cache.slot(LINEAGE)
    assert slot is not None
    assert slot.is_active
    assert slot.holding is None
    assert rig.cache.pages_held(LINEAGE) == 2 * 8
    finish(rig, turn)
    assert not slot.is_active
    assert turn.holding is None
    assert rig.cache.pages_held(LINEAGE) == 2 * 8
    assert rig.cache.session_held_req_count() == 1
    assert rig.cache.session_held_tokens() == rig.cache.session_held_swa_tokens() == (4 if kind == "radix" else 32)


@both_kinds
def test_pages_held_by_an_idle_session_in_the_window_pool_are_bounded(kind: str) -> None:
    rig = Rig(kind, 16, window=100, publishes=True)
    for length in range(50, 3000, 61):
        converse(rig, length)
        held = rig.idle_holding().pages_held()
        assert held[Pool.FULL] == -(-length // 16)
        assert held[Pool.SWA] <= -(-100 // 16) + 1
    census(rig.cache)


@both_kinds
def test_the_least_recently_used_idle_session_is_demoted_and_lives_on(kind: str) -> None:
    rig = Rig(kind, 4, window=0, publishes=True, pages=30)
    for salt, lineage in enumerate("abc"):
        converse(rig, 33, lineage, salt)
    converse(rig, 40, "a", 0)  # used again
    turn = admit(rig, request(rig, 20, "d", 9))
    assert rig.cache.slot_statistics().demotions == 1
    idle = [name for name in "abc" if rig.cache.slot(name).holding is not None]  # type: ignore[union-attr]
    assert idle == ["a", "c"]
    finish(rig, turn)
    back = admit(rig, request(rig, 41, "b", 1))
    assert back.prefix_len <= 33
    assert rig.cache.slot("b").is_active  # type: ignore[union-attr]
    census(rig.cache)


def test_demoted_kv_is_found_again() -> None:
    rig = Rig("radix", 4, publishes=True)
    converse(rig, 33)
    rig.cache.demote(LINEAGE)
    assert rig.cache.session_held_req_count() == 0
    assert source(rig, request(rig, 40)) == (32, "prefix")
    census(rig.cache)


@both_kinds
def test_a_refused_admission_changes_nothing(kind: str) -> None:
    rig = Rig(kind, 4, window=0, publishes=True, pages=20)
    converse(rig, 33, "a")
    running = admit(rig, request(rig, 41, "b", 1))
    before = rig.cache.statistics(), rig.cache.slot_statistics()
    turn = request(rig, 90, "a")
    for _ in range(3):
        assert not rig.cache.admit(turn, 90)
    assert turn.holding is None
    assert (rig.cache.statistics(), rig.cache.slot_statistics()) == before
    finish(rig, running)
    turn = request(rig, 70, "a")
    assert rig.cache.admit(turn, 70)
    assert turn.prefix_len == 33
    census(rig.cache)


@both_kinds
def test_one_request_may_have_everything_idle(kind: str) -> None:
    rig = Rig(kind, 4, window=16, publishes=True, pages=30)
    for salt in range(4):
        converse(rig, 25, f"s{salt}", salt)
    whole = request(rig, 30 * 4, None, 99)
    assert rig.cache.admit(whole, 30 * 4)
    assert rig.cache.session_held_req_count() == 0
    release_kv_cache(rig.cache, whole, Outcome(Verdict.ABORTED))
    for salt in range(4):
        turn = request(rig, 26, f"s{salt}", salt)
        assert rig.cache.admit(turn, 26), "demoted sessions continue"
        rig.cache.commit(turn, 26)
        finish(rig, turn)
    census(rig.cache)


def test_growing_demotes_too() -> None:
    rig = Rig("none", 4, window=0, pages=20)
    converse(rig, 40, "a")
    turn = admit(rig, request(rig, 30, "b", 1))
    assert rig.cache.grow(turn, 80)
    assert rig.cache.slot_statistics().demotions == 1
    assert not rig.cache.grow(turn, 81)


def test_with_a_step_in_flight_the_demoted_wait_behind_the_fence() -> None:
    rig = Rig("none", 4, window=0, pages=20)
    converse(rig, 40, "a", 0)
    converse(rig, 36, "b", 1)
    rig.cache.launch(StepId(1))
    turn = request(rig, 10, "c", 2)
    for _ in range(2):
        assert not rig.cache.admit(turn, 10)
        assert rig.cache.slot_statistics().demotions == 1, "one is enough, and it is on its way"
    rig.cache.retire(StepId(1))
    assert rig.cache.admit(turn, 10)
    assert rig.cache.slot_statistics().demotions == 1


@both_kinds
def test_an_abort_returns_to_what_is_settled(kind: str) -> None:
    rig = Rig(kind, 4, window=16, publishes=True)
    converse(rig, 37)
    turn = admit(rig, request(rig, 90))
    assert rig.cache.grow(turn, 120)
    rig.cache.commit(turn, 110)
    release_kv_cache(rig.cache, turn, Outcome(Verdict.ABORTED))
    assert source(rig, request(rig, 50)) == (37, "session")
    assert rig.idle_holding().kv_allocated_len == 37
    census(rig.cache)


@both_kinds
def test_an_aborted_first_turn_leaves_nothing_but_what_it_published(kind: str) -> None:
    rig = Rig(kind, 4, publishes=True)
    turn = admit(rig, request(rig, 30))
    rig.cache.cache_unfinished_req(turn)
    release_kv_cache(rig.cache, turn, Outcome(Verdict.ABORTED))
    slot = rig.cache.slot(LINEAGE)
    assert slot is not None
    assert (slot.settled, slot.holding, slot.is_active) == (0, None, False)
    assert source(rig, request(rig, 31)) == ((28, "prefix") if kind == "radix" else (0, "none"))
    census(rig.cache)


def test_a_later_turn_publishes_nothing_before_its_end() -> None:
    rig = Rig("radix", 4, publishes=True)
    converse(rig, 20)
    turn = admit(rig, request(rig, 40))
    tree = rig.cache.statistics()[0].tree
    rig.cache.cache_unfinished_req(turn)
    assert rig.cache.statistics()[0].tree == tree
    finish(rig, turn)
    assert rig.cache.statistics()[0].tree == 9


@both_kinds
def test_a_retracted_turn_keeps_its_claim_and_its_tokens(kind: str) -> None:
    rig = Rig(kind, 4, publishes=True)
    converse(rig, 20)
    turn = admit(rig, request(rig, 40, num_prompt=30))
    release_kv_cache(rig.cache, turn, Outcome(Verdict.RETRACTED))
    slot = rig.cache.slot(LINEAGE)
    assert slot is not None
    assert slot.is_active
    assert slot.settled == 20
    assert rig.leases() == 0
    with pytest.raises(CorruptionError, match="starts during a turn"):
        rig.cache.admit(request(rig, 50), 50)
    assert rig.cache.admit(turn, 40)
    assert turn.prefix_len == (36 if kind == "radix" else 0)
    rig.cache.commit(turn, 40)
    finish(rig, turn, 10)
    assert source(rig, request(rig, 41)) == (40, "session")
    census(rig.cache)


@both_kinds
@pytest.mark.parametrize("verdict", [Verdict.ABORTED, Verdict.FINISHED])
def test_a_retracted_turn_may_end_while_it_waits(kind: str, verdict: Verdict) -> None:
    rig = Rig(kind, 4, publishes=True)
    converse(rig, 20)
    turn = admit(rig, request(rig, 40, num_prompt=30))
    release_kv_cache(rig.cache, turn, Outcome(Verdict.RETRACTED))
    release_kv_cache(rig.cache, turn, Outcome(verdict, 4 if verdict is Verdict.FINISHED else 0))
    slot = rig.cache.slot(LINEAGE)
    assert slot is not None
    assert not slot.is_active
    assert slot.settled == (34 if verdict is Verdict.FINISHED else 20)
    following = admit(rig, request(rig, 41))
    assert following.prefix_len == (40 if kind == "radix" else 0), "computed pages are cached, though not history"
    census(rig.cache)


def test_an_abort_below_what_was_matched_drops_the_holding() -> None:
    """The tree knew more of this text than the session's history: it cannot be cut to the settled length."""
    rig = Rig("radix", 4, publishes=True)
    converse(rig, 20)
    rig.cache.demote(LINEAGE)
    converse(rig, 60, "other")
    turn = admit(rig, request(rig, 50))
    assert turn.prefix_len == 48
    release_kv_cache(rig.cache, turn, Outcome(Verdict.ABORTED))
    slot = rig.cache.slot(LINEAGE)
    assert slot is not None
    assert slot.holding is None
    assert slot.settled == 20
    assert source(rig, request(rig, 25, salt=0)) == (24, "prefix")
    census(rig.cache)


def test_a_turn_without_new_tokens_after_an_abort_above_its_point() -> None:
    """Lent to 20, history 20: a turn of 20 tokens needs 19, which is the tree's; it matches anew instead of cutting."""
    rig = Rig("radix", 1, publishes=True)
    converse(rig, 20)
    rig.cache.demote(LINEAGE)
    turn = admit(rig, request(rig, 30))
    assert holding_of(turn).cache_protected_len == 20
    release_kv_cache(rig.cache, turn, Outcome(Verdict.ABORTED))
    again = admit(rig, request(rig, 20))
    assert again.prefix_len == 19
    census(rig.cache)


@both_kinds
@pytest.mark.parametrize("length", [0, 1, 19, 20, 35, 36])
def test_rewind(kind: str, length: int) -> None:
    rig = Rig(kind, 4, window=16, publishes=True)
    converse(rig, 20)
    converse(rig, 36)
    rig.cache.rewind_session(LINEAGE, length)
    slot = rig.cache.slot(LINEAGE)
    assert slot is not None
    assert slot.settled == length
    turn = request(rig, length + 3)
    turn.tokens[length:] = 7  # another way from there
    prefix, _ = source(rig, turn)
    if kind == "radix":
        assert prefix >= (length // 4) * 4 - 4 * (length < 36)
    admit(rig, turn)
    assert turn.prefix_len == prefix <= length
    finish(rig, turn)
    census(rig.cache)


def test_rewind_keeps_what_lies_above_the_published() -> None:
    rig = Rig("none", 4, window=0)
    converse(rig, 36)
    rig.cache.rewind_session(LINEAGE, 22)
    assert source(rig, request(rig, 30)) == (22, "session")


def test_a_fork_shares_and_goes_its_own_way() -> None:
    rig = Rig("radix", 4, window=16, publishes=True)
    converse(rig, 36)
    rig.cache.begin(CacheKey("", "fork"), 36)
    turn = request(rig, 50, "fork")
    turn.tokens[36:] = 5
    admit(rig, turn)
    assert turn.prefix_len == 32
    release_kv_cache(rig.cache, turn, Outcome(Verdict.ABORTED))
    assert rig.cache.match_prefix(turn.key, turn.known).prefix_len == 36, "its history is settled, as it began"
    assert source(rig, request(rig, 50)) == (36, "session")
    with pytest.raises(CorruptionError, match="has begun already"):
        rig.cache.begin(CacheKey("", "fork"), 3)
    census(rig.cache)


@both_kinds
def test_a_session_is_not_released_during_a_turn(kind: str) -> None:
    rig = Rig(kind, 4, window=16, publishes=True)
    converse(rig, 37)
    admit(rig, request(rig, 50))
    with pytest.raises(CorruptionError, match="released during a turn"):
        rig.cache.release_session(LINEAGE)


@both_kinds
def test_closing_counts_own_pages(kind: str) -> None:
    rig = Rig(kind, 4, window=16, publishes=True)
    converse(rig, 37)
    own = sum(rig.idle_holding().pages_own())
    assert rig.cache.release_session(LINEAGE) == own > 0
    assert rig.cache.release_session(LINEAGE) == 0
    assert rig.cache.pages_held(LINEAGE) == 0
    rig.cache.flush()
    census(rig.cache)
    assert all(pool.free + pool.reserved == pool.total for pool in rig.cache.statistics())


@both_kinds
def test_flush_keeps_the_sessions(kind: str) -> None:
    rig = Rig(kind, 4, publishes=True)
    converse(rig, 37)
    rig.cache.flush()
    assert all(pool.free + pool.reserved == pool.total for pool in rig.cache.statistics())
    turn = admit(rig, request(rig, 50))
    assert turn.prefix_len == 0
    release_kv_cache(rig.cache, turn, Outcome(Verdict.ABORTED))
    assert source(rig, request(rig, 40)) == (37, "session"), "what the turn computed of the history stays"


def test_evictable_counts_what_only_idle_slots_protect() -> None:
    rig = Rig("radix", 4, window=0, publishes=True)
    converse(rig, 37)
    (pool,) = rig.cache.statistics()
    assert pool.evictable == pool.tree + pool.idle == 10
    turn = admit(rig, request(rig, 50))
    assert rig.cache.statistics()[0].evictable == 0
    finish(rig, turn)


def test_a_slot_never_resumes_on_other_tokens() -> None:
    rig = Rig("none", 4)
    converse(rig, 37)
    turn = request(rig, 50)
    turn.tokens[36] += 1
    with pytest.raises(CorruptionError, match="not its history"):
        rig.cache.admit(turn, 50)


def test_a_session_stays_in_its_namespace() -> None:
    rig = Rig("radix", 4)
    converse(rig, 20)
    turn = request(rig, 30)
    moved = CacheRequest(turn.request_id, CacheKey("elsewhere", LINEAGE), 30, turn.tokens, 30)
    with pytest.raises(CorruptionError, match="changes its namespace"):
        rig.cache.admit(moved, 30)


@both_kinds
def test_a_plain_request_is_the_inner_caches(kind: str) -> None:
    rig = Rig(kind, 4, publishes=True)
    turn = admit(rig, request(rig, 30, None))
    rig.cache.cache_unfinished_req(turn)
    assert rig.cache.grow(turn, 31)
    finish(rig, turn)
    assert rig.cache.slot_statistics().num_slots == 0
    assert source(rig, request(rig, 31, None)) == ((28, "prefix") if kind == "radix" else (0, "none"))
    census(rig.cache)


def test_without_publishing_sessions_share_nothing() -> None:
    rig = Rig("radix", 4, publishes=False)
    converse(rig, 40)
    assert rig.cache.statistics()[0].tree == 0
    assert source(rig, request(rig, 41, "other")) == (0, "none")
    rig.cache.demote(LINEAGE)
    assert rig.cache.statistics()[0].tree == 0
