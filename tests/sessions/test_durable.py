"""Sessions over a store: what a new service finds is what the old one had acknowledged, wherever it was cut."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.fake_backend import VOCAB_SIZE, expected_tokens
from tests.support.session_world import SessionWorld
from tests.support.world import WorldConfig

from sojourn.core.errors import ClientError, ConflictError
from sojourn.engine.events import FinishReason
from sojourn.sessions.journal import SqliteJournal
from sojourn.sessions.recorder import PENDING_MAX, Recorder
from sojourn.sessions.service import SessionService, TurnParams, UnstoredEvent
from sojourn.sessions.shelf import bytes_of
from sojourn.sessions.store import NoStore, SessionStore, StoredSession, StoreError, StoreEvent
from sojourn.sessions.turns import SessionState

SMALL = WorldConfig(page_size=4, num_pages=120, context=160, chunk_tokens_max=8)


class FailingStore:
    """Keeps nothing; fails while told to."""

    def __init__(self) -> None:
        self.fails = False
        self.groups: list[list[StoreEvent]] = []

    def load(self) -> Sequence[StoredSession]:
        return ()

    def age(self) -> float:
        return 0.0

    def commit(self, events: Sequence[StoreEvent]) -> None:
        if not events:  # then no disk is asked
            return
        if self.fails:
            raise StoreError("the disk is full")
        self.groups.append(list(events))

    def close(self) -> None:
        return


def prompt(count: int, salt: int = 0) -> list[int]:
    return [(salt * 17 + position * 7 + 2) % VOCAB_SIZE for position in range(count)]


def world_on(path: Path, **options: bool | float | None) -> SessionWorld:
    world = SessionWorld(SMALL, store=SqliteJournal(path), **options)  # type: ignore[arg-type]
    world.service.restore()
    return world


def shut(world: SessionWorld) -> None:
    store_of(world).close()


def store_of(world: SessionWorld) -> SessionStore:
    return world.service._recorder._store


Picture = dict[str, tuple[object, ...]]


def picture(sessions: Iterator[StoredSession] | Sequence[StoredSession]) -> Picture:
    """What must be the same on both sides, whatever a running turn has done."""
    return {one.session_id: (one.tokens.tolist(), one.turns, one.epoch, one.idle_timeout_s) for one in sessions}


def alive(service: SessionService) -> list[StoredSession]:
    """A session that is closing is closed already for whoever comes next."""
    names = service.session_ids()
    return [service.copy(name) for name in names if service.summary(name).state is not SessionState.CLOSING]


# -- one restart


def test_a_new_service_continues_where_the_old_one_was(tmp_path: Path) -> None:
    world = world_on(tmp_path / "a.db")
    plain, salted = world.service.open("plain", idle_timeout_s=50.0), world.service.open("salted")
    world.run_turn(plain, prompt(10), 6)
    world.service.start_turn(salted, prompt(5), _params(4), note=b"said", cache_namespace="salt")
    world.run()
    world.clock.now += 1
    fork = world.service.fork(plain, "fork", length=7)
    world.clock.now += 1
    world.service.rewind(plain, length=12)
    before = alive(world.service)
    shut(world)

    again = world_on(tmp_path / "a.db")
    assert again.service.session_ids() == (salted, fork, plain)
    assert picture(alive(again.service)) == picture(before)
    assert again.service.history(salted).turns[0].note == b"said"
    assert [one.namespace for one in alive(again.service)] == ["salt", "", ""]
    with pytest.raises(ClientError, match="chosen with its first turn"):
        again.service.start_turn(salted, prompt(1), _params(1), cache_namespace="other")
    for name in (plain, salted, fork):
        again.run_turn(name, prompt(3, 5), 8)
    assert again.service.copy(plain).next_turn == 2, "numbers go on"
    with pytest.raises(ConflictError):
        again.service.open("fork")
    again.close_all()
    shut(again)
    assert world_on(tmp_path / "a.db").service.session_ids() == ()


def test_only_time_that_a_server_ran_counts_against_an_idle_session(tmp_path: Path) -> None:
    world = world_on(tmp_path / "a.db")
    world.service.open("short", idle_timeout_s=10.0)
    world.clock.now += 6.0
    world.service.open("long", idle_timeout_s=100.0)
    shut(world)
    again = world_on(tmp_path / "a.db")
    again.clock.now += 3.9
    again.step()
    assert again.service.session_ids() == ("short", "long")
    again.clock.now += 0.2
    again.step()
    assert again.service.session_ids() == ("long",)
    shut(again)
    assert world_on(tmp_path / "a.db").service.session_ids() == ("long",)


def idle(world: SessionWorld, seconds: float) -> None:
    """Time passes, and the service is woken when it asked for it."""
    end = world.clock.now + seconds
    while (wait_s := world.service.wake_in()) is not None and world.clock.now + wait_s <= end:
        world.clock.now += wait_s
        world.step()
        assert world.service.wake_in() != 0.0, "it would be woken for ever"
    world.clock.now = end


@pytest.mark.parametrize(("is_killed", "left"), [(True, 10.0), (False, 5.0)])
@pytest.mark.parametrize("own", [True, False])
def test_time_in_which_nothing_is_kept_counts_as_well(tmp_path: Path, is_killed: bool, left: float, own: bool) -> None:
    """A killed server forgets what passed since it last told its store of the time."""
    world = world_on(tmp_path / "a.db", idle_max_s=500.0 if own else 60.0)
    world.service.open("a", idle_timeout_s=60.0 if own else None)
    idle(world, 55.0)
    shut(world) if is_killed else world.service._recorder.close()
    again = world_on(tmp_path / "a.db", idle_max_s=500.0 if own else 60.0)
    idle(again, left - 0.1)
    assert again.service.session_ids() == ("a",)
    idle(again, 0.2)
    assert again.service.session_ids() == ()
    assert again.service.wake_in() is None, "a store without sessions is left alone"
    shut(again)


def test_a_server_that_could_not_begin_leaves_the_time_as_it_was(tmp_path: Path) -> None:
    world = world_on(tmp_path / "a.db")
    world.service.open("a")
    idle(world, 55.0)
    world.service._recorder.close()
    Recorder(SqliteJournal(tmp_path / "a.db"), world.clock).close()
    store = SqliteJournal(tmp_path / "a.db")
    assert store.age() == 55.0
    store.close()


def test_no_session_stays_idle_for_longer_than_the_store_keeps_any(tmp_path: Path) -> None:
    world = world_on(tmp_path / "a.db", idle_max_s=20.0)
    world.service.open("patient", idle_timeout_s=100.0)
    world.service.open("hasty", idle_timeout_s=5.0)
    world.service.open("any")
    for moment, left in ((4.0, 3), (2.0, 2), (13.0, 2), (2.0, 0)):
        world.clock.now += moment
        world.step()
        assert len(world.service.session_ids()) == left
    why = {notice.session_id: notice.why for notice in world.closed}
    assert why == {"hasty": "timeout", "patient": "age", "any": "age"}
    shut(world)


def test_a_turn_that_was_cut_off_is_shown_until_the_next_one(tmp_path: Path) -> None:
    world = world_on(tmp_path / "a.db", logs_tokens=True)
    session = world.service.open("a")
    world.run_turn(session, prompt(6), 5)
    record = world.turn(session, prompt(4, 1), 20)
    while len(record.tokens) < 7:
        world.step()
    shut(world)
    again = world_on(tmp_path / "a.db", logs_tokens=True)
    summary = again.service.summary(session)
    assert (summary.num_tokens, summary.state) == (11, SessionState.IDLE)
    assert summary.killed is not None
    assert summary.killed.output_ids.tolist() == record.tokens
    assert summary.killed.prompt_ids.tolist() == prompt(4, 1)
    again.run_turn(session, prompt(4, 1), 20)
    assert again.service.summary(session).killed is None
    shut(again)


def test_a_session_that_was_to_close_after_its_turn_is_closed_if_the_turn_never_ends(tmp_path: Path) -> None:
    world = world_on(tmp_path / "a.db", logs_tokens=True)
    session = world.service.open("a")
    world.turn(session, prompt(4), 20)
    world.step(3)
    assert world.service.close(session).deferred
    world.step(3)
    shut(world)
    assert world_on(tmp_path / "a.db").service.session_ids() == ()


# -- a store that fails


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("cache", ["radix", "none"])
@pytest.mark.parametrize("window", [0, 16])
def test_a_turn_that_cannot_be_kept_is_undone_and_says_so(depth: int, cache: str, window: int) -> None:
    store = FailingStore()
    world = SessionWorld(replace(SMALL, cache=cache, window=window), store=store, depth=depth)
    for name in ("a", "b"):
        world.service.open(name)
        world.run_turn(name, prompt(9), 7)
    before = picture(alive(world.service))
    turns = [world.turn(name, prompt(5, 1), 12) for name in ("a", "b")]
    plain = world.submit(prompt(5, 2), 12)
    world.step(2)
    store.fails = True
    world.run()
    for turn in turns:
        assert isinstance(turn.end, UnstoredEvent)
        assert (turn.reason, len(turn.tokens)) == (FinishReason.ABORT, 12)
        assert "could not be stored: the disk is full" in turn.end.message
    assert plain.tokens == expected_tokens(prompt(5, 2), 12)
    assert picture(alive(world.service)) == before
    for act in (
        lambda: world.service.open("c"),
        lambda: world.service.rewind("a", length=3),
        lambda: world.service.fork("a", "c"),
        lambda: world.service.close("a"),
        lambda: world.service.start_turn("a", prompt(3), _params(4)),
    ):
        with pytest.raises(StoreError, match="the disk is full"):
            act()
    assert picture(alive(world.service)) == before
    assert world.service._recorder.num_bytes == sum(bytes_of(one.turns) for one in alive(world.service))
    store.fails = False
    for name in ("a", "b"):
        cached = world.run_turn(name, prompt(5, 1), 12).usage.cached_tokens
        has_slid = bool(window) and cache == "none"  # the window before the turn is gone, and nobody else had it
        assert cached >= (0 if has_slid else 15), "nothing that stands is computed again"
    world.close_all()


def test_a_turn_is_not_worth_starting_while_the_store_fails() -> None:
    """Nothing waits to be kept: the store is asked all the same."""
    store = FailingStore()
    world = SessionWorld(SMALL, store=store)
    session = world.service.open("a")
    store.fails = True
    with pytest.raises(StoreError):
        world.service.open("b")
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full"):
            world.service.start_turn(session, prompt(5), _params(4))
    assert world.service.summary(session).state is SessionState.IDLE
    store.fails = False
    world.run_turn(session, prompt(5), 4)
    world.close_all()


def test_what_turns_leave_that_never_stand_does_not_pile_up() -> None:
    store = FailingStore()
    world = SessionWorld(SMALL, store=store)
    session = world.service.open("a")
    store.groups.clear()
    for _ in range(PENDING_MAX):
        world.turn(session, prompt(5), 30)
        world.step()
        world.service.abort(session)
        assert len(world.service._recorder._pending) < PENDING_MAX
    assert len(store.groups) == 2
    world.close_all()


def test_an_interrupted_turn_that_cannot_be_kept_is_undone_before_anything_else_happens() -> None:
    store = FailingStore()
    world = SessionWorld(SMALL, store=store, logs_tokens=True)
    session = world.service.open("a")
    turn = world.turn(session, prompt(5), 30)
    world.step(6)
    store.fails = True
    assert world.service.interrupt(session)
    assert world.service.history(session).turns == ()
    store.fails = False
    world.step()
    assert isinstance(turn.end, UnstoredEvent)
    world.run_turn(session, prompt(5), 30)
    world.close_all()


def test_all_that_ends_in_a_step_is_one_group() -> None:
    store = FailingStore()
    world = SessionWorld(SMALL, store=store)
    for name in ("a", "b", "c"):
        world.service.open(name)
    for name in ("a", "b", "c"):
        world.turn(name, prompt(4), 6)
    store.groups.clear()
    world.run()
    kinds = [[type(event).__name__ for event in group] for group in store.groups]
    assert kinds == [["Begun", "Begun", "Begun", "Ended", "Ended", "Ended", "Aged"]]


# -- bounds


def test_the_least_recently_used_idle_sessions_make_room(tmp_path: Path) -> None:
    world = world_on(tmp_path / "a.db", bytes_max=2000)
    for name in ("a", "b", "c"):
        world.service.open(name)
        world.run_turn(name, prompt(20), 20)
    assert world.service.session_ids() == ("a", "b", "c")
    world.run_turn("a", prompt(20), 20)
    world.service.open("d")
    running = world.turn("b", prompt(5), 30)
    world.step(3)
    world.run_turn("d", prompt(60), 40)
    world.run()
    assert running.reason is FinishReason.LENGTH
    assert world.service.session_ids() == ("b", "d"), "c was used least recently, then a; b ran"
    assert [(notice.session_id, notice.why) for notice in world.closed] == [("c", "bytes"), ("a", "bytes")]
    assert world.service._recorder.num_bytes <= 2000
    shut(world)
    assert picture(alive(world_on(tmp_path / "a.db").service)).keys() == {"b", "d"}


def test_one_session_may_take_all_the_room() -> None:
    world = SessionWorld(SMALL, store=NoStore(), bytes_max=100)
    session = world.service.open()
    world.run_turn(session, prompt(20), 20)
    world.run_turn(session, prompt(20), 20)
    assert world.service.session_ids() == (session,)


# -- any sequence of events, cut anywhere


@dataclass
class Life:
    """A world, and what was acknowledged after each thing that happened."""

    world: SessionWorld
    pictures: list[Picture] = field(default_factory=list)

    def act(self, kind: str, which: int, size: int) -> None:
        service, names = self.world.service, self.world.service.session_ids()
        name = names[which % len(names)] if names else ""
        try:
            if kind == "open":
                service.open(idle_timeout_s=None if size % 2 else 30.0)
            elif kind == "pass":
                self.world.clock.now += size
            elif kind == "step":
                for _ in range(size):
                    self.world.step()
                    self.pictures.append(picture(alive(service)))
            elif name:
                self._of_a_session(kind, name, size)
        except (ClientError, StoreError):
            pass
        self.pictures.append(picture(alive(service)))

    def _of_a_session(self, kind: str, name: str, size: int) -> None:
        service = self.world.service
        length = service.summary(name).num_tokens * size // 12
        if kind == "turn":
            service.start_turn(name, prompt(size, len(name)), _params(1 + size % 5), note=bytes([size]))
        elif kind == "rewind":
            service.rewind(name, length=length)
        elif kind == "fork":
            service.fork(name, length=length)
        elif kind == "close":
            service.close(name)
        elif kind == "interrupt":
            service.interrupt(name)
        else:
            service.abort(name)


KINDS = (
    "open",
    "open",
    "turn",
    "turn",
    "turn",
    "step",
    "step",
    "rewind",
    "fork",
    "close",
    "interrupt",
    "abort",
    "pass",
)
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 12)), max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS, cut=st.floats(0, 1), logs_tokens=st.booleans())
def test_any_life_is_found_again_whole_or_as_it_was_at_an_earlier_moment(
    events: list[tuple[str, int, int]], cut: float, logs_tokens: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.db"
        life = Life(world_on(path, logs_tokens=logs_tokens))
        life.pictures.append({})
        for event in [("open", 0, 1), *events]:
            life.act(*event)
        for ending in ("-wal", ""):
            shutil.copy(f"{path}{ending}", f"{folder}/b.db{ending}")
            shutil.copy(f"{path}{ending}", f"{folder}/c.db{ending}")
        shut(life.world)
        whole = world_on(Path(folder) / "b.db")
        assert picture(alive(whole.service)) == life.pictures[-1]
        whole.close_all()
        shut(whole)
        log = Path(folder) / "c.db-wal"
        log.write_bytes(log.read_bytes()[: int(cut * log.stat().st_size)])
        cut_off = world_on(Path(folder) / "c.db")
        assert picture(alive(cut_off.service)) in life.pictures
        for name in cut_off.service.session_ids():
            if cut_off.service.summary(name).num_tokens < 60:
                cut_off.run_turn(name, prompt(3), 4)
        cut_off.close_all()
        shut(cut_off)


class FlakyJournal(SqliteJournal):
    """Fails when it is told to, in the middle of a group."""

    fails = False

    def commit(self, events: Sequence[StoreEvent]) -> None:
        if self.fails and events:
            raise StoreError("the disk is full")
        super().commit(events)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS, failing=st.lists(st.booleans(), min_size=41, max_size=41), depth=st.integers(0, 1))
def test_whatever_fails_the_service_and_its_store_say_the_same(
    events: list[tuple[str, int, int]], failing: list[bool], depth: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = FlakyJournal(Path(folder) / "a.db")
        life = Life(SessionWorld(SMALL, store=store, logs_tokens=True, depth=depth))
        for event, fails in zip([("open", 0, 1), *events], failing, strict=False):
            store.fails = fails
            life.act(*event)
        store.fails = False
        life.world.run()
        life.world.service.open("last")  # whatever waited to be kept is, now
        life.world.step()
        store.close()
        again = world_on(Path(folder) / "a.db")
        assert picture(alive(again.service)) == picture(alive(life.world.service))
        assert all(again.service.summary(name).killed is None for name in again.service.session_ids())
        shut(again)
        life.world.slots.flush()


def test_a_recorder_without_a_store_keeps_nothing_and_refuses_nothing() -> None:
    world = SessionWorld(SMALL)
    assert isinstance(world.service._recorder, Recorder)
    assert world.service.restore() == 0
    world.run_turn(world.service.open(), prompt(4), 4)
    world.close_all()


def _params(count: int) -> TurnParams:
    return TurnParams(max_new_tokens=count)
