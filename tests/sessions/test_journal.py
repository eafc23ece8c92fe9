"""The SQLite store: what it gives back, when it is cut, damaged, foreign, old, new, full or taken."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support import no_sync

from sojourn.core.step import TokenArray
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.journal import MIGRATIONS, SqliteJournal
from sojourn.sessions.store import (
    Added,
    Aged,
    Begun,
    Ended,
    Removed,
    Rewound,
    Said,
    SessionStore,
    StoredSession,
    StoreError,
    StoreEvent,
    complaint_of,
)

NOTHING = np.empty(0, np.int32)


def tokens(count: int, first: int = 0) -> TokenArray:
    return np.arange(first, first + count, dtype=np.int32)


def empty(name: str, namespace: str = "") -> StoredSession:
    return StoredSession(name, namespace, False, None, 0.0, 0, 0, (), NOTHING)


def turn_of(name: str, turn: int, start: int, asked: int, said: int, note: bytes = b"n", at: float = 1.0) -> Ended:
    record = TurnRecord(turn, start, start + asked, start + asked + said, note, "stop")
    return Ended(name, at, record, tokens(asked + said, start))


def loaded(store: SessionStore) -> dict[str, StoredSession]:
    return {session.session_id: session for session in store.load()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def kept(path: Path, events: list[StoreEvent]) -> dict[str, StoredSession]:
    """What another process finds after these."""
    store = SqliteJournal(path)
    store.commit(events)
    store.close()
    again = SqliteJournal(path)
    found = loaded(again)
    again.close()
    return found


def test_sessions_come_back_with_all_that_was_said(path: Path) -> None:
    events: list[StoreEvent] = [
        Added(replace(empty("a", "acme"), idle_timeout_s=2.5)),
        Begun("a", "acme\x1fsalt", 0),
        turn_of("a", 0, 0, 5, 3, note=b"\x00note"),
        Begun("a", "acme\x1fsalt", 1),
        Ended("a", 2.0, None),
        Begun("a", "acme\x1fsalt", 2),
        turn_of("a", 2, 8, 4, 0, at=7.0),
    ]
    (session,) = kept(path, events).values()
    assert (session.namespace, session.has_begun, session.idle_timeout_s) == ("acme\x1fsalt", True, 2.5)
    assert (session.used_at, session.epoch, session.next_turn, session.killed) == (7.0, 0, 3, None)
    assert session.tokens.tolist() == list(range(12))
    assert session.turns == (TurnRecord(0, 0, 5, 8, b"\x00note", "stop"), TurnRecord(2, 8, 12, 12, b"n", "stop"))
    assert complaint_of(session.tokens, session.turns, session.next_turn, 100) is None


@pytest.mark.parametrize(
    ("length", "ends"), [(0, []), (3, [3]), (5, [5]), (8, [8]), (9, [8, 9]), (12, [8, 12]), (13, [8, 13])]
)
def test_a_rewind_cuts_what_is_kept_as_it_cuts_the_history(path: Path, length: int, ends: list[int]) -> None:
    events: list[StoreEvent] = [Added(empty("a")), turn_of("a", 0, 0, 5, 3), turn_of("a", 1, 8, 4, 1)]
    session = kept(path, [*events, Rewound("a", 3.0, length)])["a"]
    assert session.tokens.tolist() == list(range(length))
    assert [record.end for record in session.turns] == ends
    assert all(record.output_start <= record.end for record in session.turns)
    assert session.epoch == 1
    assert complaint_of(session.tokens, session.turns, 2, 100) is None


def test_a_turn_that_was_cut_off_is_told_with_what_it_had_said(path: Path) -> None:
    events: list[StoreEvent] = [
        Added(empty("a")),
        Begun("a", "", 0, tokens(4), b"note"),
        Said("a", (7, 8)),
        Said("a", (9,)),
    ]
    store = SqliteJournal(path)
    store.commit(events)
    store.close()
    killed = kept(path, [])["a"].killed
    assert killed is not None
    assert (killed.turn, killed.note) == (0, b"note")
    assert (killed.prompt_ids.tolist(), killed.output_ids.tolist()) == ([0, 1, 2, 3], [7, 8, 9])
    again = SqliteJournal(path)
    again.load()
    list(again.load())
    again.commit([Begun("a", "", 1)])
    again.close()
    assert kept(path, [])["a"].killed is None


@pytest.mark.parametrize("end", [turn_of("a", 0, 0, 1, 1), Ended("a", 1.0, None), Rewound("a", 1.0, 0)])
def test_a_turn_that_ended_was_not_cut_off(path: Path, end: StoreEvent) -> None:
    found = kept(path, [Added(empty("a")), Begun("a", "", 0, tokens(1), b""), Said("a", (1,)), end])
    assert found["a"].killed is None


def test_for_how_long_servers_ran_is_kept(path: Path) -> None:
    store = SqliteJournal(path)
    assert store.age() == 0.0
    store.commit([Aged(12.5)])
    store.close()
    kept(path, [Added(empty("a"))])
    again = SqliteJournal(path)
    assert again.age() == 12.5
    again.close()


def test_a_closed_session_leaves_nothing(path: Path) -> None:
    events: list[StoreEvent] = [Added(empty("a")), Added(empty("b")), turn_of("a", 0, 0, 5, 3)]
    assert list(kept(path, [*events, Begun("a", "", 1, tokens(1), b""), Removed("a")])) == ["b"]
    with sqlite3.connect(path) as db:
        for table, count in (("sessions", 1), ("turns", 0), ("running", 0), ("said", 0)):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,)
    db.close()


# -- a group is one


def test_a_group_that_cannot_be_kept_leaves_nothing(path: Path) -> None:
    store = SqliteJournal(path)
    store.commit([Added(empty("a"))])
    with pytest.raises(StoreError, match="UNIQUE"):
        store.commit([Added(empty("b")), turn_of("b", 0, 0, 3, 3), Added(empty("a"))])
    store.commit([Added(empty("b"))])
    store.close()
    found = kept(path, [])
    assert {name: len(session.turns) for name, session in found.items()} == {"a": 0, "b": 0}


def test_a_full_disk_is_a_refusal_and_passes(path: Path) -> None:
    store = SqliteJournal(path)
    store.commit([Added(empty("a"))])
    store.bound_pages(12)
    with pytest.raises(StoreError, match="the disk is full"):
        for turn in range(1000):
            store.commit([turn_of("a", turn, 100 * turn, 50, 50)])
    last = turn
    store.bound_pages(1 << 30)
    store.commit([turn_of("a", last, 100 * last, 50, 50)])
    store.close()
    session = kept(path, [])["a"]
    assert len(session.turns) == last + 1
    assert complaint_of(session.tokens, session.turns, last + 1, 10**9) is None


def test_a_group_whose_sync_failed_does_not_come_back(path: Path) -> None:
    """It stands in the log when the disk refuses to sync, and who reads the log after a kill cannot tell."""
    command = (sys.executable, "-m", "tests.support.no_sync", str(path))
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == no_sync.UNSUPPORTED:
        pytest.skip("no system call can be made to fail here")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "the disk did not read or write" in ended.stdout
    assert kept(path, []).keys() == {"told"}


# -- files


def test_a_second_server_is_told_who_has_the_file(path: Path) -> None:
    store = SqliteJournal(path)
    with pytest.raises(StoreError, match="another server uses it"):
        SqliteJournal(path, lock_wait_s=0.0)
    store.commit([Added(empty("a"))])
    store.close()
    assert list(kept(path, [])) == ["a"]


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "sessions.db", tmp_path / "nowhere" / "sessions.db", Path("/proc/sessions.db")):
        with pytest.raises(StoreError, match="cannot be made or opened"):
            SqliteJournal(place)


def test_a_file_of_another_kind_is_refused_and_left_as_it_was(path: Path) -> None:
    path.write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match="no session store"):
        SqliteJournal(path)
    assert path.read_bytes() == b"x" * 5000
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (a)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SqliteJournal(path)
    assert path.read_bytes() == before


def test_a_newer_version_is_refused_and_an_older_one_brought_up_to_date(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sojourn.sessions.journal.MIGRATIONS", MIGRATIONS[:1])
        old = SqliteJournal(path)
        old._db.execute("INSERT INTO sessions VALUES (1, 'a', '', 1, NULL, 7.5, 0, 0)")
        old.close()
    new = SqliteJournal(path)
    assert new.age() == 7.5, "as far as a file of then can tell"
    new.close()
    (session,) = kept(path, []).values()
    assert session.session_id == "a"
    assert kept(path, [Added(empty("b"))]).keys() == {"a", "b"}
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT version FROM schema").fetchone() == (len(MIGRATIONS),)
        db.execute("UPDATE schema SET version = 99")
    db.close()
    with pytest.raises(StoreError, match="newer Sojourn"):
        SqliteJournal(path)


def damaged(path: Path, act: Callable[[sqlite3.Connection], object]) -> None:
    kept(path, [Added(empty("a")), turn_of("a", 0, 0, 5, 3)])
    with sqlite3.connect(path) as db:
        act(db)
    db.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE turns SET tokens = zeroblob(length(tokens))",
        "UPDATE turns SET end = end + 1",
        "UPDATE turns SET note = x'00'",
        "UPDATE turns SET turn = 3",
        "DELETE FROM sessions",
    ],
)
def test_a_damaged_session_is_refused(path: Path, change: str) -> None:
    damaged(path, lambda db: db.execute(change))
    store = SqliteJournal(path)
    with pytest.raises(StoreError, match="damaged"):
        list(store.load())
    store.close()


def test_a_damaged_file_is_refused(path: Path) -> None:
    events: list[StoreEvent] = [Added(empty("a")), *(turn_of("a", n, 100 * n, 60, 40) for n in range(200))]
    kept(path, events)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    with pytest.raises(StoreError, match="damaged"):
        store = SqliteJournal(path)
        try:
            list(store.load())
        finally:
            store.close()
    assert path.read_bytes()[8192:] == b"\xff" * (len(whole) - 8192)


def test_a_log_that_is_cut_anywhere_gives_the_groups_before_the_cut(path: Path, tmp_path: Path) -> None:
    store = SqliteJournal(path)
    store.commit([Added(empty("a")), Added(empty("b"))])
    sizes = [Path(f"{path}-wal").stat().st_size]
    for turn in range(12):
        store.commit([turn_of(name, turn, 40 * turn, 20, 20) for name in ("a", "b")])
        sizes.append(Path(f"{path}-wal").stat().st_size)
    shutil.copy(path, tmp_path / "whole.db")
    shutil.copy(f"{path}-wal", tmp_path / "whole.db-wal")
    store.close()
    log = (tmp_path / "whole.db-wal").read_bytes()
    for cut in range(0, len(log) + 1, 997):
        copy = tmp_path / f"cut{cut}.db"
        shutil.copy(tmp_path / "whole.db", copy)
        Path(f"{copy}-wal").write_bytes(log[:cut])
        found = kept(copy, [])
        groups = sum(size <= cut for size in sizes) - 1
        assert {name: len(session.turns) for name, session in found.items()} == (
            dict.fromkeys("ab", groups) if groups >= 0 else {}
        )


def test_histories_that_cannot_be() -> None:
    good = [TurnRecord(0, 0, 2, 4), TurnRecord(3, 4, 4, 6)]
    assert complaint_of(tokens(6), good, 4, 6) is None
    cases: list[tuple[TokenArray, list[TurnRecord], int, int, str]] = [
        (tokens(6), good, 4, 5, "token 5 is 5"),
        (tokens(6) - 1, good, 4, 6, "token 0 is -1"),
        (tokens(5), good, 4, 6, "there are 5"),
        (tokens(6), good, 3, 6, "do not rise"),
        (tokens(6), [good[0], replace(good[1], turn=0)], 4, 6, "do not rise"),
        (tokens(6), good[1:], 4, 6, "turn 3 does not begin"),
        (tokens(6), [good[0], replace(good[1], output_start=7)], 4, 6, "turn 3"),
    ]
    for ids, turns, next_turn, vocab_size, complaint in cases:
        assert complaint in str(complaint_of(ids, turns, next_turn, vocab_size))
