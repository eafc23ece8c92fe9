"""A store in one SQLite file: sessions, their turns, and the tokens of turns that run. Knows no engine.

    sessions ──< turns      a row per finished turn, with its tokens; a checksum each
        │
        ├─── running        the turn that runs, at the level `token`
        └──< said           what it has said, a row per step

    clock                   one row: for how long servers have run on the file

The file is locked for as long as it is open, so two servers never write to one. The write-ahead log takes a group of
events as one transaction. When `commit` returns it is in the hands of the operating system: it outlives a killed process.
A loss of power may take the last groups (whole ones, those that were not on the disk yet) unless promises are synced.
"""

import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import assert_never

import numpy as np

from sojourn.core.step import TokenArray
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.store import (
    Added,
    Aged,
    Begun,
    Ended,
    KilledTurn,
    Removed,
    Rewound,
    Said,
    StoredSession,
    StoreError,
    StoreEvent,
    is_promise,
)

APPLICATION_ID = 0x50_6A_73_01  # in the header of the file: it is one of ours
LOCK_WAIT_S = 5.0  # for a server that is about to end
_TOKEN = np.dtype("<i4")
_HINTS = {
    sqlite3.SQLITE_BUSY: "another server uses it: give each its own data directory",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk did not read or write",
    sqlite3.SQLITE_READONLY: "it cannot be written to",
    sqlite3.SQLITE_CANTOPEN: "it cannot be made or opened",
    sqlite3.SQLITE_CORRUPT: "it is damaged: put a copy in its place, or move it away to begin with no sessions",
    sqlite3.SQLITE_NOTADB: "it is no session store: move it away to begin with no sessions",
}

# A list only grows: the version of a file is how many of these it has seen.
MIGRATIONS = (
    """
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY, session_id TEXT NOT NULL UNIQUE, namespace TEXT NOT NULL, has_begun INTEGER NOT NULL,
        idle_timeout_s REAL, used_at REAL NOT NULL, epoch INTEGER NOT NULL, next_turn INTEGER NOT NULL) STRICT;
    CREATE TABLE turns (
        id INTEGER PRIMARY KEY, key INTEGER NOT NULL, turn INTEGER NOT NULL,
        start INTEGER NOT NULL, output_start INTEGER NOT NULL, end INTEGER NOT NULL,
        reason TEXT NOT NULL, note BLOB NOT NULL, tokens BLOB NOT NULL, checksum INTEGER NOT NULL,
        UNIQUE (key, turn)) STRICT;
    """,
    """
    CREATE TABLE running (
        key INTEGER PRIMARY KEY, turn INTEGER NOT NULL, note BLOB NOT NULL, prompt BLOB NOT NULL) STRICT;
    CREATE TABLE said (id INTEGER PRIMARY KEY, key INTEGER NOT NULL, tokens BLOB NOT NULL) STRICT;
    CREATE INDEX said_by_key ON said (key);
    """,
    "ALTER TABLE sessions ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;",
    """
    CREATE TABLE clock (seconds REAL NOT NULL) STRICT;
    INSERT INTO clock SELECT coalesce(max(used_at), 0.0) FROM sessions;
    """,
)


class SqliteJournal:
    """Speaks `SessionStore`. Any thread may use it, one at a time."""

    def __init__(self, path: Path, *, syncs: bool = False, lock_wait_s: float = LOCK_WAIT_S) -> None:
        """Make or open the file, bring it up to date, and lock it. Raises StoreError and leaves it as it was.

        `syncs`: a promise is on the disk when `commit` returns.
        """
        self._path = path
        self._keys: dict[str, int] = {}  # rows by session
        self._syncs = syncs
        self._is_synced = False
        with self._refusals():
            self._db = sqlite3.connect(path, timeout=lock_wait_s, isolation_level=None, check_same_thread=False)
        try:
            with self._refusals():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    @property
    def path(self) -> Path:
        return self._path

    def load(self) -> Iterator[StoredSession]:
        """All of it is read and checked before the first is given."""
        with self._refusals():
            rows = self._db.execute(
                "SELECT key, session_id, namespace, has_begun, idle_timeout_s, used_at, epoch, next_turn, priority"
                " FROM sessions ORDER BY used_at, key"
            ).fetchall()
            turns = self._load_turns()
            killed = self._load_killed()
        self._keys = {row[1]: row[0] for row in rows}
        if strays := (turns.keys() | killed.keys()) - set(self._keys.values()):
            raise StoreError(f"{self._path} is damaged: {len(strays)} sessions have turns and are not there")
        for key, session_id, namespace, has_begun, idle_timeout_s, used_at, epoch, next_turn, priority in rows:
            records, parts = zip(*turns[key], strict=True) if key in turns else ((), ())
            tokens = np.concatenate(parts) if parts else np.empty(0, np.int32)
            yield StoredSession(
                session_id, namespace, bool(has_begun), idle_timeout_s, used_at, epoch, next_turn, records, tokens,
                killed.get(key), priority,
            )  # fmt: skip

    def age(self) -> float:
        with self._refusals():
            (seconds,) = self._db.execute("SELECT seconds FROM clock").fetchone()
        return float(seconds)

    def commit(self, events: Sequence[StoreEvent]) -> None:
        if not events:
            return
        keys = dict(self._keys)
        with self._refusals():
            self._sync(self._syncs and any(is_promise(event) for event in events))
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for event in events:
                    self._write(event, keys)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._blot_out()
                raise
        self._keys = keys

    def close(self) -> None:
        self._db.close()

    def bound_pages(self, pages_max: int) -> None:
        """Let the file grow to that many pages of SQLite's, as if the disk were full then. For tests."""
        self._db.execute(f"PRAGMA max_page_count = {pages_max}")

    # -- opening

    def _prepare(self) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("BEGIN IMMEDIATE")  # whoever else has it is met here
        try:
            self._migrate()
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        (mode,) = self._db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{self._path}: this file system keeps no write-ahead log")
        self._db.execute("PRAGMA journal_size_limit = 16777216")
        self._db.execute("PRAGMA synchronous = NORMAL")

    def _migrate(self) -> None:
        (ours,) = self._db.execute("PRAGMA application_id").fetchone()
        if ours != APPLICATION_ID:
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if tables or ours:
                raise StoreError(f"{self._path} is another program's database")
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute("CREATE TABLE schema (version INTEGER NOT NULL) STRICT")
            self._db.execute("INSERT INTO schema VALUES (0)")
        (version,) = self._db.execute("SELECT version FROM schema").fetchone()
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self._path} was written by a newer Sojourn (its version is {version}, this one knows {len(MIGRATIONS)})"
            )
        for script in MIGRATIONS[version:]:
            for statement in script.split(";"):
                self._db.execute(statement)
        if version < len(MIGRATIONS):
            self._db.execute("UPDATE schema SET version = ?", (len(MIGRATIONS),))

    # -- reading

    def _load_turns(self) -> dict[int, list[tuple[TurnRecord, TokenArray]]]:
        turns: dict[int, list[tuple[TurnRecord, TokenArray]]] = {}
        for key, turn, start, output_start, end, reason, note, tokens, checksum in self._db.execute(
            "SELECT key, turn, start, output_start, end, reason, note, tokens, checksum FROM turns"
        ):
            record = TurnRecord(turn, start, output_start, end, note, reason)
            if checksum != _checksum(record, tokens):
                raise StoreError(f"{self._path} {_HINTS[sqlite3.SQLITE_CORRUPT][3:]} (turn {turn} of session {key})")
            turns.setdefault(key, []).append((record, _array(tokens)))
        for told in turns.values():
            told.sort(key=lambda turn: turn[0].turn)
        return turns

    def _load_killed(self) -> dict[int, KilledTurn]:
        said: dict[int, list[bytes]] = {}
        for key, tokens in self._db.execute("SELECT key, tokens FROM said ORDER BY id"):
            said.setdefault(key, []).append(tokens)
        return {
            key: KilledTurn(turn, _array(prompt), _array(b"".join(said.get(key, ()))), note)
            for key, turn, note, prompt in self._db.execute("SELECT key, turn, note, prompt FROM running")
        }

    # -- writing

    def _sync(self, is_wanted: bool) -> None:
        if is_wanted != self._is_synced:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if is_wanted else 'NORMAL'}")
            self._is_synced = is_wanted

    def _blot_out(self) -> None:
        """A group that was refused because it could not be synced may stand in the log, whole, and whoever opens the file
        next would believe it. What is written next takes its place there: so something is, and is not synced."""
        if self._syncs:
            with suppress(sqlite3.Error):  # the disk takes nothing any more
                self._sync(False)
                (number,) = self._db.execute("PRAGMA user_version").fetchone()
                self._db.execute(f"PRAGMA user_version = {(number + 1) % 2**31}")

    def _write(self, event: StoreEvent, keys: dict[str, int]) -> None:
        match event:
            case Added():
                keys[event.session.session_id] = self._add(event.session)
            case Begun():
                self._begin(keys[event.session_id], event)
            case Said():
                row = keys[event.session_id], _bytes(np.array(event.token_ids, np.int32))
                self._db.execute("INSERT INTO said (key, tokens) VALUES (?, ?)", row)
            case Ended():
                key = keys[event.session_id]
                self._forget_running(key)
                if event.record is not None and event.tokens is not None:
                    self._put_turn(key, event.record, event.tokens)
                self._db.execute("UPDATE sessions SET used_at = ? WHERE key = ?", (event.used_at, key))
            case Rewound():
                self._rewind(keys[event.session_id], event)
            case Removed():
                key = keys.pop(event.session_id)
                self._forget_running(key)
                self._db.execute("DELETE FROM turns WHERE key = ?", (key,))
                self._db.execute("DELETE FROM sessions WHERE key = ?", (key,))
            case Aged():
                self._db.execute("UPDATE clock SET seconds = ?", (event.seconds,))
            case other:
                assert_never(other)

    def _add(self, session: StoredSession) -> int:
        (key,) = self._db.execute(
            "INSERT INTO sessions"
            " (session_id, namespace, has_begun, idle_timeout_s, used_at, epoch, next_turn, priority)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING key",
            (
                session.session_id, session.namespace, session.has_begun, session.idle_timeout_s, session.used_at,
                session.epoch, session.next_turn, session.priority,
            ),
        ).fetchone()  # fmt: skip
        for record in session.turns:
            self._put_turn(key, record, session.tokens[record.start : record.end])
        return int(key)

    def _begin(self, key: int, event: Begun) -> None:
        self._forget_running(key)
        self._db.execute(
            "UPDATE sessions SET namespace = ?, has_begun = 1, next_turn = ? WHERE key = ?",
            (event.namespace, event.turn + 1, key),
        )
        if event.prompt_ids is not None:
            row = key, event.turn, event.note, _bytes(event.prompt_ids)
            self._db.execute("INSERT INTO running (key, turn, note, prompt) VALUES (?, ?, ?, ?)", row)

    def _forget_running(self, key: int) -> None:
        self._db.execute("DELETE FROM running WHERE key = ?", (key,))
        self._db.execute("DELETE FROM said WHERE key = ?", (key,))

    def _put_turn(self, key: int, record: TurnRecord, tokens: TokenArray) -> None:
        said = _bytes(tokens)
        self._db.execute(
            "INSERT OR REPLACE INTO turns (key, turn, start, output_start, end, reason, note, tokens, checksum)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                key, record.turn, record.start, record.output_start, record.end, record.reason, record.note, said,
                _checksum(record, said),
            ),
        )  # fmt: skip

    def _rewind(self, key: int, event: Rewound) -> None:
        """As `History.rewind`: whole turns go, the one that holds the place is cut."""
        length = event.length
        self._forget_running(key)
        self._db.execute("DELETE FROM turns WHERE key = ? AND start >= ?", (key, length))
        for turn, start, output_start, reason, note, tokens in self._db.execute(
            "SELECT turn, start, output_start, reason, note, tokens FROM turns WHERE key = ? AND end > ?", (key, length)
        ).fetchall():
            record = TurnRecord(turn, start, min(output_start, length), length, note, reason)
            self._put_turn(key, record, _array(tokens)[: length - start])
        self._db.execute("UPDATE sessions SET epoch = epoch + 1, used_at = ? WHERE key = ?", (event.used_at, key))

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What SQLite cannot do, as a sentence with the file's name."""
        try:
            yield
        except sqlite3.Error as error:
            hint = _HINTS.get(_code_of(error), "")
            raise StoreError(f"{self._path}: {error}{hint and f': {hint}'}") from error


def _code_of(error: sqlite3.Error) -> int:
    """SQLite's primary code; 0 for what Python's module raises by itself."""
    try:
        return error.sqlite_errorcode & 0xFF
    except AttributeError:
        return 0


def _bytes(tokens: TokenArray) -> bytes:
    return np.ascontiguousarray(tokens, _TOKEN).tobytes()


def _array(tokens: bytes) -> TokenArray:
    return np.frombuffer(tokens, _TOKEN).astype(np.int32)


def _checksum(record: TurnRecord, tokens: bytes) -> int:
    numbers = struct.pack("<4q", record.turn, record.start, record.output_start, record.end)
    return zlib.crc32(tokens, zlib.crc32(record.note, zlib.crc32(record.reason.encode(), zlib.crc32(numbers))))
