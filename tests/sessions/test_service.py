"""Sessions over the real cache and a back end that notices wrong pages."""

from typing import Unpack

import pytest
from tests.support.fake_backend import EOS_ID, VOCAB_SIZE, expected_completion, expected_tokens
from tests.support.session_world import SessionWorld
from tests.support.world import Sizes, WorldConfig

from sojourn.core.errors import ClientError, ConflictError, CorruptionError, NotFoundError
from sojourn.core.step import SamplingParams
from sojourn.engine.events import FinishReason
from sojourn.sessions.service import CloseReply, TurnParams
from sojourn.sessions.turns import SessionState

KINDS = [(cache, page, window) for cache in ("radix", "none") for page in (1, 16) for window in (0, 32)]
kinds = pytest.mark.parametrize(("cache", "page_size", "window"), KINDS)


def world_of(cache: str = "radix", page_size: int = 16, window: int = 0, **others: Unpack[Sizes]) -> SessionWorld:
    config = WorldConfig(cache=cache, page_size=page_size, window=window, num_pages=640 // page_size, **others)
    return SessionWorld(config)


def new_tokens(count: int, salt: int = 0) -> list[int]:
    return [(salt * 13 + position * 11 + 3) % VOCAB_SIZE for position in range(count)]


# -- turns


@kinds
def test_a_turn_computes_only_its_new_tokens(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window)
    session_id = world.service.open()
    length = 0
    for turn in range(8):
        rows = world.backend.rows
        end = world.run_turn(session_id, new_tokens(5, turn), 9)
        assert end.usage.cached_tokens in (max(0, length - 1), length)
        assert world.backend.rows - rows <= 1 + 5 + 8
        length += 5 + 9
    view = world.service.history(session_id)
    assert [record.end for record in view.turns] == [14 * (turn + 1) for turn in range(8)]
    assert view.state is SessionState.IDLE
    world.close_all()


@kinds
def test_sessions_side_by_side_with_plain_requests(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window, seqs_max=3)
    sessions = [world.service.open() for _ in range(4)]
    for turn in range(3):
        prompts = [[*world.history(name), *new_tokens(6, salt)] for salt, name in enumerate(sessions)]
        records = [world.turn(name, new_tokens(6, salt), 7) for salt, name in enumerate(sessions)]
        plain = world.submit(new_tokens(20, turn), 7)
        world.run()
        assert plain.tokens == expected_tokens(new_tokens(20, turn), 7)
        for record, prompt in zip(records, prompts, strict=True):
            assert record.tokens == expected_tokens(prompt, 7)
    world.close_all()


def test_each_turn_has_its_own_parameters() -> None:
    world = world_of()
    session_id = world.service.open()
    for turn, count in enumerate((4, 1, 9)):
        sampling = SamplingParams(temperature=turn / 2, seed=turn)
        end = world.run_turn(session_id, new_tokens(3, turn), TurnParams(sampling, max_new_tokens=count))
        assert end.usage.completion_tokens == count


def test_a_sampled_eos_counts_and_stays_in_the_history() -> None:
    world = SessionWorld(WorldConfig(), eos_ids=frozenset({EOS_ID}))
    prompt = next(p for p in ([salt] for salt in range(VOCAB_SIZE)) if EOS_ID in expected_tokens(p, 20)[1:])
    session_id = world.service.open()
    record = world.turn(session_id, prompt, 20)
    world.run()
    assert record.tokens == expected_completion(prompt, 20, frozenset({EOS_ID}))
    assert record.reason is FinishReason.STOP
    assert world.history(session_id) == [*prompt, *record.tokens]
    assert world.history(session_id)[-1] == EOS_ID
    ignoring = world.submit(prompt, TurnParams(max_new_tokens=20, ignore_eos=True))
    world.run()
    assert ignoring.tokens == expected_tokens(prompt, 20)


def test_without_a_limit_a_turn_runs_to_the_context() -> None:
    world = SessionWorld(WorldConfig(context=48))
    session_id = world.service.open()
    record = world.turn(session_id, new_tokens(10), TurnParams())
    world.run()
    assert len(record.tokens) == 38
    assert record.reason is FinishReason.LENGTH
    with pytest.raises(ClientError, match=r"48 tokens .* 48"):
        world.turn(session_id, [], TurnParams())


@kinds
def test_a_turn_without_new_tokens_continues_the_last_one(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window)
    session_id = world.service.open()
    world.run_turn(session_id, new_tokens(5), 20)
    end = world.run_turn(session_id, [], 6)
    assert end.usage.cached_tokens == 24
    world.close_all()


# -- interrupts and aborts


@kinds
@pytest.mark.parametrize("steps", range(9))
@pytest.mark.parametrize("action", ["interrupt", "abort"])
def test_a_turn_ended_from_outside_at_every_step(
    cache: str, page_size: int, window: int, steps: int, action: str
) -> None:
    """Waiting, between chunks, decoding, and one step before the end; the next turn is as if it had never been."""
    world = world_of(cache, page_size, window, chunk_tokens_max=8)
    session_id = world.service.open()
    world.run_turn(session_id, new_tokens(20), 10)
    before = world.history(session_id)
    record = world.turn(session_id, new_tokens(30, 1), 6)
    world.step(steps)
    assert record.end is None
    assert (world.service.interrupt if action == "interrupt" else world.service.abort)(session_id)
    keeps = action == "interrupt" and len(record.tokens) > 0
    world.step()
    assert record.reason.value == (action if keeps or action == "abort" else "abort")
    assert world.history(session_id) == [*before, *(new_tokens(30, 1) + record.tokens if keeps else [])]
    rows = world.backend.rows
    length = len(world.history(session_id))
    end = world.run_turn(session_id, new_tokens(4, 2), 5)
    assert end.usage.cached_tokens in (length - 1, length), "nothing that stands is computed again"
    assert world.backend.rows - rows <= 1 + 4 + 4
    world.close_all()


def test_where_no_turn_runs_there_is_nothing_to_end() -> None:
    world = world_of()
    session_id = world.service.open()
    assert not world.service.interrupt(session_id)
    assert not world.service.abort(session_id)


@kinds
def test_an_interrupted_turn_that_was_retracted_keeps_what_it_said(cache: str, page_size: int, window: int) -> None:
    """It waits without pages, its output stands, and the next turn goes on from there."""
    world = world_of(cache, page_size, window, retract_every=5)
    session_id = world.service.open()
    world.run_turn(session_id, new_tokens(10), 3)
    record = world.turn(session_id, new_tokens(4, 1), 200)
    while world.world.scheduler.statistics().waiting == 0 or not record.tokens:
        world.step()
    world.service.interrupt(session_id)
    world.run()
    assert record.reason is FinishReason.INTERRUPT
    assert world.history(session_id)[17:] == record.tokens
    world.run_turn(session_id, new_tokens(3, 2), 8)
    world.close_all()


# -- close and expiry


def test_an_idle_session_closes_at_once() -> None:
    world = world_of()
    session_id = world.service.open("chat")
    world.run_turn(session_id, new_tokens(20), 8)
    assert world.service.pages_held(session_id) == 2
    reply = world.service.close(session_id)
    assert reply == CloseReply(deferred=False, freed_pages=1)  # the partial tail; the whole page is the tree's
    with pytest.raises(NotFoundError):
        world.service.close(session_id)
    world.run()
    assert world.closed == []


@kinds
@pytest.mark.parametrize("steps", range(6))
def test_a_close_during_a_turn_waits_for_its_end(cache: str, page_size: int, window: int, steps: int) -> None:
    world = world_of(cache, page_size, window, chunk_tokens_max=8)
    session_id = world.service.open()
    prompt = new_tokens(20)
    record = world.turn(session_id, prompt, 5)
    world.step(steps)
    assert world.service.close(session_id) == CloseReply(deferred=True, freed_pages=None)
    assert world.service.close(session_id) == CloseReply(deferred=True, freed_pages=None)
    with pytest.raises(ConflictError):
        world.turn(session_id, [1])
    world.run()
    assert record.tokens == expected_tokens(prompt, 5)
    (notice,) = world.closed
    assert (notice.session_id, notice.is_expired) == (session_id, False)
    assert (notice.num_tokens, notice.num_turns) == (25, 1)
    own = {("radix", 1): 0, ("radix", 16): 1, ("none", 1): 24, ("none", 16): 2}  # what the tree has not
    assert notice.freed_pages == own[cache, page_size] * (2 if window else 1)
    assert world.service.session_ids() == ()
    world.close_all()


def test_a_session_from_elsewhere_has_the_timeout_of_this_service_or_its_own() -> None:
    away = SessionWorld(WorldConfig())
    away.service.open("plain")
    away.service.open("patient", idle_timeout_s=30.0)
    world = SessionWorld(WorldConfig(), idle_timeout_s=10.0)
    for name in ("plain", "patient"):
        world.service.take_in(away.service.copy(name))
    world.clock.now += 10.0
    world.step()
    assert world.service.session_ids() == ("patient",)


def test_timeouts_count_from_the_end_of_the_last_turn() -> None:
    world = SessionWorld(WorldConfig(), idle_timeout_s=10.0)
    busy, idle = world.service.open("busy"), world.service.open("idle")
    assert world.service.wake_in() == 10.0
    record = world.turn(busy, new_tokens(5), 40)
    world.step(3)
    world.clock.now += 9.0
    assert world.service.wake_in() == 1.0
    world.step()
    assert world.closed == []
    world.clock.now += 1.0
    world.step()
    assert [(notice.session_id, notice.is_expired) for notice in world.closed] == [(idle, True)]
    world.clock.now += 100.0  # the running turn's session does not expire
    world.run()
    assert len(record.tokens) == 40
    assert world.service.session_ids() == (busy,)
    assert world.service.wake_in() == 10.0
    world.clock.now += 4.0
    world.run_turn(busy, [1], 2)
    assert world.service.wake_in() == 10.0
    world.clock.now += 10.0
    world.step()
    assert world.service.session_ids() == ()
    assert world.service.wake_in() is None


# -- rewind and fork


@kinds
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 30, 43, 59, 60])
def test_a_rewind_forgets_the_rest(cache: str, page_size: int, window: int, length: int) -> None:
    world = world_of(cache, page_size, window)
    session_id = world.service.open()
    world.run_turn(session_id, new_tokens(20), 10)
    world.run_turn(session_id, new_tokens(20, 1), 10)
    kept = world.history(session_id)[:length]
    assert world.service.rewind(session_id, length=length) == length
    assert world.history(session_id) == kept
    world.run_turn(session_id, new_tokens(7, 2), 9)
    world.run_turn(session_id, new_tokens(7, 3), 9)
    world.close_all()


def test_a_rewind_to_a_turn_s_end() -> None:
    world = world_of()
    session_id = world.service.open()
    for salt in range(3):
        world.run_turn(session_id, new_tokens(4, salt), 4)
    assert world.service.rewind(session_id, turn=1) == 16
    with pytest.raises(ClientError):
        world.service.rewind(session_id, turn=2)
    with pytest.raises(ClientError):
        world.service.rewind(session_id, turn=1, length=8)
    with pytest.raises(ClientError):
        world.service.rewind(session_id)
    world.run_turn(session_id, new_tokens(4, 5), 4)


def test_a_running_turn_cannot_be_rewound_under() -> None:
    world = world_of()
    session_id = world.service.open()
    world.run_turn(session_id, new_tokens(5), 5)
    record = world.turn(session_id, new_tokens(5, 1), 5)
    with pytest.raises(ConflictError):
        world.service.rewind(session_id, length=3)
    world.run()
    assert len(record.tokens) == 5


@kinds
@pytest.mark.parametrize("length", [0, 16, 29, 30])
def test_forks_go_their_own_ways(cache: str, page_size: int, window: int, length: int) -> None:
    world = world_of(cache, page_size, window)
    trunk = world.service.open("trunk")
    world.run_turn(trunk, new_tokens(20), 10)
    fork = world.service.fork(trunk, "fork", length=length)
    assert world.history(fork) == world.history(trunk)[:length]
    world.run_turn(fork, new_tokens(5, 1), 6)
    world.run_turn(trunk, new_tokens(5, 2), 6)
    world.run_turn(fork, new_tokens(5, 3), 6)
    record = world.turn(fork, new_tokens(5, 4), 6)
    world.step(2)
    world.service.abort(fork)
    world.run()
    assert record.reason is FinishReason.ABORT
    world.run_turn(fork, new_tokens(5, 5), 6)
    world.close_all()


def test_a_fork_of_a_running_session_has_its_finished_turns() -> None:
    world = world_of()
    trunk = world.service.open("trunk")
    world.run_turn(trunk, new_tokens(5), 5)
    world.turn(trunk, new_tokens(5, 1), 5)
    world.step()
    fork = world.service.fork(trunk)
    world.run()
    assert world.history(fork) == world.history(trunk)[:10]
    with pytest.raises(ConflictError):
        world.service.fork(trunk, "trunk")


# -- the door


def test_a_turn_refused_by_the_last_door_leaves_no_claim_behind() -> None:
    world = world_of()
    session_id = world.service.open()
    world.submit(new_tokens(4), 4)
    world._ids -= 1  # the next request gets the id of one that is alive
    with pytest.raises(ConflictError, match="alive already"):
        world.service.start_turn(session_id, new_tokens(5), TurnParams(), cache_namespace="another")
    view = world.service.history(session_id)
    assert (view.state, len(view.token_ids)) == (SessionState.IDLE, 0)
    world.service.start_turn(session_id, new_tokens(5), TurnParams(max_new_tokens=3), cache_namespace="a third")
    world.run()
    assert len(world.history(session_id)) == 8
    world.close_all()


def test_refusals_change_nothing() -> None:
    world = world_of(context=100)
    service = world.service
    session_id = service.open("chat")
    world.run_turn(session_id, new_tokens(20), 8)
    before = (world.history(session_id), service.pages_held(session_id), world.slots.statistics())
    refusals: list[tuple[str, list[int], int, type[ClientError], str]] = [
        ("nobody", [1], 5, NotFoundError, "nobody"),
        ("chat", [1, 97], 5, ClientError, r"input_ids\[1\]"),
        ("chat", new_tokens(72), 5, ClientError, r"100 tokens .* 100"),
        ("chat", [1], -1, ClientError, "at least 0"),
    ]
    for name, ids, count, kind, message in refusals:
        with pytest.raises(kind, match=message):
            world.turn(name, ids, count)
    with pytest.raises(ConflictError):
        service.open("chat")
    for prompt, message in (([], "empty"), ([-1], r"prompt\[0\]"), (new_tokens(100), r"100 tokens .* 100")):
        with pytest.raises(ClientError, match=message):
            world.submit(prompt)
    assert (world.history(session_id), service.pages_held(session_id), world.slots.statistics()) == before
    assert not service.has_work
    assert world.run_turn(session_id, [1], 5).usage.cached_tokens in (27, 28)


def test_namespaces_do_not_share() -> None:
    world = world_of()
    for namespace, cached in (("a", 0), ("b", 0), ("a", 32)):
        name = world.service.open(namespace=namespace)
        record = world.turn(name, new_tokens(40), 3)
        world.run()
        assert record.end is not None
        assert record.end.usage.cached_tokens == cached


def test_a_report_says_which_sessions_are_open() -> None:
    world = world_of()
    for name in ("one", "two"):
        world.service.open(name)
    world.run_turn("one", new_tokens(5), 3)
    world.turn("two", new_tokens(5), 3)
    world.step()
    report = world.service.report(CorruptionError("page 7 has two owners"))
    assert "broken law: page 7 has two owners" in report
    assert "open sessions: 2\n  one: idle, 8 tokens\n  two: running, 0 tokens" in report


def test_a_broken_law_passes_through() -> None:
    world = world_of()
    session_id = world.service.open()
    world.turn(session_id, [1, 2])
    world.backend.fail_with = CorruptionError("page 7 has two owners")
    with pytest.raises(CorruptionError):
        world.step()


# -- prefill ahead


@kinds
def test_an_append_is_history_and_its_kv_is_kept(cache: str, page_size: int, window: int) -> None:
    world = world_of(cache, page_size, window)
    session_id = world.service.open()
    for part in range(3):
        rows = world.backend.rows
        record = world.turn(session_id, new_tokens(21, part), 0)
        world.run()
        assert record.reason is FinishReason.LENGTH
        assert record.tokens == []
        assert world.backend.rows - rows == 21
    assert world.history(session_id) == [token for part in range(3) for token in new_tokens(21, part)]
    end = world.run_turn(session_id, new_tokens(2), 5)
    assert end.usage.cached_tokens == 63
    assert end.usage.cached_source == "session"
    world.close_all()


def test_a_turn_may_follow_an_append_without_tokens_of_its_own() -> None:
    world = world_of()
    session_id = world.service.open()
    world.turn(session_id, new_tokens(16), 0)
    world.run()
    assert world.run_turn(session_id, [], 5).usage.cached_tokens == 15


def test_an_append_can_be_aborted_and_comes_back_from_retraction() -> None:
    world = world_of(retract_every=3)
    session_id = world.service.open()
    record = world.turn(session_id, new_tokens(120), 0)
    world.run()
    assert record.end is not None
    world.turn(session_id, new_tokens(120, 1), 0)
    world.step(2)
    assert world.service.abort(session_id)
    world.run()
    assert world.history(session_id) == new_tokens(120)
    world.run_turn(session_id, new_tokens(3), 4)
    world.close_all()


# -- idle time


def test_a_session_may_have_its_own_idle_time() -> None:
    world = SessionWorld(WorldConfig(), idle_timeout_s=60.0)
    world.service.open("patient")
    world.service.open("brief", idle_timeout_s=5.0)
    assert world.service.wake_in() == 5.0
    world.clock.now += 5.0
    world.step()
    assert [closed.session_id for closed in world.closed] == ["brief"]
    assert world.service.wake_in() == 55.0
    world.turn("patient", new_tokens(4), 0)
    assert world.service.wake_in() is None
    world.run()
    assert world.service.wake_in() == 60.0
