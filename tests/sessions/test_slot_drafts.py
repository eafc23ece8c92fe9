"""A session's slot keeps what the draft model has read, beside its own KV and whatever becomes of that."""

from itertools import pairwise

import pytest
from tests.support.fake_backend import VOCAB_SIZE
from tests.support.session_world import SessionWorld
from tests.support.slots import LINEAGE, Rig
from tests.support.world import WorldConfig

from sojourn.audit.census import census
from sojourn.cache.protocol import Outcome, Verdict
from sojourn.core.errors import CorruptionError
from sojourn.core.step import Pool
from sojourn.pages.holding import Holding
from sojourn.sessions.slot import SessionSlot

SIZE = 4


def config(draft_pages: int = 64, **other: object) -> WorldConfig:
    base = {"page_size": SIZE, "num_pages": 64, "context": 200, "drafts_max": 4, "draft_pages": draft_pages}
    return WorldConfig(**{**base, **other})  # type: ignore[arg-type]


def slot_of(world: SessionWorld, session_id: str) -> SessionSlot:
    slot = world.slots.slot(session_id)
    assert slot is not None
    return slot


def draft_of(world: SessionWorld, session_id: str) -> Holding:
    draft = slot_of(world, session_id).draft
    assert draft is not None
    return draft


def drafts(world: SessionWorld) -> tuple[int, int, int]:
    """Pages: running, idle, free."""
    pool = world.slots.statistics()[-1]
    assert pool.pool is Pool.DRAFT
    return pool.running, pool.idle, pool.free


def tokens(count: int, first: int = 0) -> list[int]:
    return [(first + 7 * index) % VOCAB_SIZE for index in range(count)]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("right", [0.0, 0.8, 1.0])
def test_after_every_turn_nothing_lies_past_its_end(depth: int, right: float) -> None:
    world = SessionWorld(config(drafts_right=right), depth=depth)
    session_id = world.service.open()
    for turn in range(5):
        world.run_turn(session_id, tokens(9, turn), 3 + 2 * turn)
        draft, settled = draft_of(world, session_id), slot_of(world, session_id).settled
        assert settled - 1 - 4 <= draft.kv_committed_len < settled, "it has read all but what was guessed last"
        assert draft.num_pages == -(-draft.kv_committed_len // SIZE)
        assert drafts(world)[:2] == (0, draft.num_pages)
    model = world.world.draft_model
    assert model is not None
    assert model.resumes == 4, "every turn but the first goes on where the last one was"
    assert model.inner.rows < 2 * len(world.history(session_id)) + 60 * 5, "and reads nothing again"
    world.close_all()


def test_the_holding_is_the_turns_while_it_runs() -> None:
    world = SessionWorld(config())
    session_id = world.service.open()
    world.run_turn(session_id, tokens(20))
    kept = draft_of(world, session_id)
    world.turn(session_id, tokens(3), 8)
    world.step()
    slot = slot_of(world, session_id)
    assert slot.draft is None
    assert slot.turn is not None
    assert slot.turn.draft is kept, "moved, not copied"
    assert world.slots.pages_by_pool(session_id)[Pool.DRAFT] == (kept.num_pages, 0)
    world.run()
    assert draft_of(world, session_id) is kept


def test_an_aborted_turn_goes_back_to_what_is_settled() -> None:
    world = SessionWorld(config())
    session_id = world.service.open()
    world.run_turn(session_id, tokens(20))
    before = draft_of(world, session_id).kv_committed_len
    world.turn(session_id, tokens(30), 8)
    world.step(3)
    assert world.service.abort(session_id)
    world.run()
    settled = slot_of(world, session_id).settled
    assert before <= draft_of(world, session_id).kv_committed_len <= settled
    world.run_turn(session_id, tokens(5))
    world.close_all()


def test_a_rewind_cuts_it_and_a_close_gives_it_back() -> None:
    world = SessionWorld(config())
    session_id = world.service.open()
    world.run_turn(session_id, tokens(40))
    world.service.rewind(session_id, length=13)
    draft = draft_of(world, session_id)
    assert (draft.kv_committed_len, draft.num_pages) == (13, 4)
    world.run_turn(session_id, tokens(8))
    world.service.rewind(session_id, length=0)
    assert slot_of(world, session_id).draft is None
    world.run_turn(session_id, tokens(8))
    own = sum(own for own, _ in world.slots.pages_by_pool(session_id).values())
    assert world.service.close(session_id).freed_pages == own
    assert drafts(world) == (0, 0, 64)
    world.close_all()


def test_a_demoted_session_keeps_it() -> None:
    """It is in a pool of its own: the pages that were short are none of it."""
    world = SessionWorld(config())
    session_id = world.service.open()
    world.run_turn(session_id, tokens(20))
    world.slots.demote(session_id)
    draft = draft_of(world, session_id)
    assert slot_of(world, session_id).holding is None
    world.run_turn(session_id, tokens(8))
    assert draft_of(world, session_id) is draft
    world.slots.flush()
    assert slot_of(world, session_id).draft is None
    world.run_turn(session_id, tokens(8))
    world.close_all()


def test_a_fork_begins_without_and_catches_up() -> None:
    world = SessionWorld(config(drafts_right=1.0))
    session_id = world.service.open()
    world.run_turn(session_id, tokens(40))
    fork = world.service.fork(session_id)
    assert world.slots.pages_by_pool(fork)[Pool.DRAFT] == (0, 0)
    model = world.world.draft_model
    assert model is not None
    rows = model.inner.rows
    end = world.run_turn(fork, tokens(2), 20)
    assert end.usage.cached_tokens >= 40
    assert model.inner.rows > rows + 40, "the target found a prefix; the draft model reads it"
    assert end.usage.num_accepted > 10
    world.close_all()


def test_where_pages_are_short_a_turn_runs_without_guesses_and_says_the_same() -> None:
    world = SessionWorld(config(draft_pages=6))
    session_id = world.service.open()
    end = world.run_turn(session_id, tokens(60), 20)
    assert end.usage.num_drafted == 0
    running, idle, free = drafts(world)
    assert (running, idle + free) == (0, 6)
    assert draft_of(world, session_id).kv_committed_len == 16, "the first chunk, and then there were no more pages"
    world.close_all()


def test_the_session_used_least_recently_loses_it_first() -> None:
    world = SessionWorld(config(draft_pages=24))
    names = [world.service.open() for _ in range(3)]
    for name in names:
        world.run_turn(name, tokens(20), 4)
    kept = [world.slots.pages_by_pool(name)[Pool.DRAFT][0] for name in names]
    assert all(kept)
    world.run_turn(names[0], tokens(2), 4)
    world.run_turn(world.service.open(), tokens(24), 4)
    assert slot_of(world, names[1]).draft is None
    assert slot_of(world, names[0]).draft is not None
    assert world.slots.statistics()[-1].evicted == kept[1]
    world.close_all()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_retracted_turn_waits_with_it(depth: int) -> None:
    world = SessionWorld(config(drafts_right=1.0, retract_every=3), depth=depth)
    session_id = world.service.open()
    end = world.run_turn(session_id, tokens(40), 40)
    assert end.usage.num_retractions > 2
    assert end.usage.num_accepted > 0
    model = world.world.draft_model
    assert model is not None
    assert model.resumes >= end.usage.num_retractions - 1
    assert model.inner.rows < 300, "it does not begin again each time"
    world.close_all()


def test_plain_requests_have_it_while_they_run() -> None:
    world = SessionWorld(config(drafts_right=1.0))
    record = world.submit(tokens(20), 12)
    world.step(3)
    running, idle, _ = drafts(world)
    assert running > 0
    assert idle == 0
    world.run()
    assert len(record.tokens) == 12
    assert drafts(world) == (0, 0, 64)


def test_the_audit_finds_a_slot_that_keeps_what_a_turn_has() -> None:
    world = SessionWorld(config())
    session_id = world.service.open()
    world.run_turn(session_id, tokens(20))
    world.turn(session_id, tokens(3), 8)
    world.step()
    slot = slot_of(world, session_id)
    assert slot.turn is not None
    slot.draft = slot.turn.draft
    with pytest.raises(CorruptionError, match="keeps drafts under a turn"):
        census(world.slots)


def test_without_a_draft_model_there_is_no_such_pool() -> None:
    rig = Rig("radix", 4, window=16, publishes=True)
    request = rig.request(20)
    assert rig.cache.admit(request, 20)
    assert request.draft is None
    rig.cache.commit(request, 20)
    rig.cache.cache_finished_req(request, Outcome(Verdict.FINISHED, 0))
    assert set(rig.cache.pages_by_pool(LINEAGE)) == {Pool.FULL, Pool.SWA}
    assert all(first.pool < then.pool for first, then in pairwise(rig.cache.statistics()))
    assert len(rig.cache.statistics()) == 2
