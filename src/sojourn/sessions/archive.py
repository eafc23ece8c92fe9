"""One session as one file: its history, and its KV where that was asked for. Knows bytes; opens no file.

    0   magic (8 bytes), version u16, number of sections u16, zero u32
    16  per section: tag (4 letters), zero u32, length u64
        the sections' bytes, in that order
        SHA-256 of everything before

    HEAD  JSON: the model, and what belongs to the session as a whole
    TURN  MessagePack: a row per turn, as in `TurnRecord`
    TOKN  token ids, 32 bits each, little endian

    kvpg  pages of KV, where they were asked for: the last section (`archive_kv.py`)

A reader refuses a tag it does not know if that begins with a capital, and passes over it if not. The sum tells a file that was cut or changed by accident. Who changes it on purpose can make another sum: so all that a history
must be is checked where it is taken in, and a tenant can say by this no more than by its turns.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from sojourn.core.errors import ClientError
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.store import StoredSession

MAGIC = b"SOJOURN\x1a"
VERSION = 1
SECTIONS_MAX = 64
_START, _SECTION, SUM_BYTES = struct.Struct("<8sHHI"), struct.Struct("<4sIQ"), 32
TABLE_BYTES_MAX = _START.size + SECTIONS_MAX * _SECTION.size  # of a file that was not refused
_TOKEN = np.dtype("<i4")
_INT = 1 << 62


class _Head(msgspec.Struct, frozen=True):
    model: str
    model_fingerprint: str
    session_id: str
    cache_salt: str
    has_begun: bool
    idle_timeout_s: float | None
    epoch: int
    next_turn: int
    priority: int = 0


class _Turn(msgspec.Struct, frozen=True, array_like=True):
    turn: int
    start: int
    output_start: int
    end: int
    reason: str
    note: bytes


@dataclass(frozen=True, slots=True)
class ArchivedModel:
    """`fingerprint` says whether two are the same, `name` is for a person."""

    name: str
    fingerprint: str


def pack(stored: StoredSession, model: ArchivedModel) -> bytes:
    """The session as a file. `stored.namespace` is taken for its cache salt: whose it is, a file does not say."""
    return join(sections_of(stored, model))


def sections_of(stored: StoredSession, model: ArchivedModel) -> dict[bytes, bytes]:
    """Of its history."""
    head = _Head(
        model=model.name,
        model_fingerprint=model.fingerprint,
        session_id=stored.session_id,
        cache_salt=stored.namespace,
        has_begun=stored.has_begun,
        idle_timeout_s=stored.idle_timeout_s,
        epoch=stored.epoch,
        next_turn=stored.next_turn,
        priority=stored.priority,
    )
    rows = [_Turn(t.turn, t.start, t.output_start, t.end, t.reason, t.note) for t in stored.turns]
    return {
        b"HEAD": msgspec.json.encode(head),
        b"TURN": msgspec.msgpack.encode(rows),
        b"TOKN": np.ascontiguousarray(stored.tokens, _TOKEN).tobytes(),
    }


def unpack(data: bytes, model: ArchivedModel) -> StoredSession:
    """The session in a file that `pack` made for the same model. ClientError for anything else, saying what is wrong."""
    return unpack_sections(split(data), model)


def unpack_sections(sections: Mapping[bytes, bytes], model: ArchivedModel) -> StoredSession:
    """As `unpack`, of the sections of its history."""
    if missing := {b"HEAD", b"TURN", b"TOKN"} - sections.keys():
        raise _refusal(f"it has no section {min(missing).decode()}")
    try:
        head = msgspec.json.decode(sections[b"HEAD"], type=_Head)
        rows = msgspec.msgpack.decode(sections[b"TURN"], type=list[_Turn])
    except msgspec.MsgspecError as error:
        raise _refusal(str(error)) from error
    if head.model_fingerprint != model.fingerprint:
        raise ClientError(
            f"the session was held with another model ({head.model}); this server has {model.name}",
            param="file",
            code="foreign_model",
        )
    if len(sections[b"TOKN"]) % _TOKEN.itemsize:
        raise _refusal("its tokens end in the middle of one")
    numbers = [
        head.epoch,
        head.next_turn,
        *(n for row in rows for n in (row.turn, row.start, row.output_start, row.end)),
    ]
    if not all(0 <= number < _INT for number in numbers):
        raise _refusal("a number in it is out of range")
    timeout_s = head.idle_timeout_s
    if timeout_s is not None and not timeout_s > 0:
        raise _refusal("its timeout is not above 0")
    return StoredSession(
        session_id=head.session_id,
        namespace=head.cache_salt,
        has_begun=head.has_begun,
        idle_timeout_s=timeout_s,
        used_at=0.0,
        epoch=head.epoch,
        next_turn=head.next_turn,
        turns=tuple(TurnRecord(r.turn, r.start, r.output_start, r.end, r.note, r.reason) for r in rows),
        tokens=np.frombuffer(sections[b"TOKN"], _TOKEN).astype(np.int32),
        priority=head.priority,
    )


def join(sections: Mapping[bytes, bytes]) -> bytes:
    whole = opening(sections)
    return whole + hashlib.sha256(whole).digest()


def opening(sections: Mapping[bytes, bytes], last: tuple[bytes, int] | None = None) -> bytes:
    """What stands before the sum, or before the body of a `last` section, of which tag and length are known."""
    table = [_SECTION.pack(tag, 0, len(body)) for tag, body in sections.items()]
    if last is not None:
        table.append(_SECTION.pack(last[0], 0, last[1]))
    return b"".join((_START.pack(MAGIC, VERSION, len(table), 0), *table, *sections.values()))


def split(data: bytes) -> dict[bytes, bytes]:
    """The sections by tag. ClientError for a file that is another, or was cut or changed, or has what we do not know."""
    digest = hashlib.sha256(memoryview(data)[:-SUM_BYTES]).digest() if len(data) >= SUM_BYTES else b""
    places = places_of(data[:TABLE_BYTES_MAX], len(data), is_whole=digest == data[-SUM_BYTES:])
    return {tag: data[place : place + length] for tag, (place, length) in places.items()}


def places_of(start: bytes, length: int, *, is_whole: bool) -> dict[bytes, tuple[int, int]]:
    """Place and length of each section in a file of that length which begins so. `is_whole`: its sum is right.

    ClientError as for `split`.
    """
    if length < _START.size + SUM_BYTES or not start.startswith(MAGIC):
        raise _refusal("it does not begin as one")
    _, version, count, zero = _START.unpack_from(start)
    if version != VERSION:
        raise ClientError(
            f"the file has version {version}; this server knows {VERSION}", param="file", code="unknown_version"
        )
    if not is_whole:
        raise _refusal("it was cut or changed: its sum is wrong")
    place, end = _START.size + count * _SECTION.size, length - SUM_BYTES
    if zero or count > SECTIONS_MAX or place > end:
        raise _refusal("its table of contents is wrong")
    sections: dict[bytes, tuple[int, int]] = {}
    for index in range(count):
        tag, zero, size = _SECTION.unpack_from(start, _START.size + index * _SECTION.size)
        if zero or tag in sections or place + size > end:
            raise _refusal("its table of contents is wrong")
        sections[tag] = place, size
        place += size
    if place != end:
        raise _refusal("it has bytes that no section has")
    known = {b"HEAD", b"TURN", b"TOKN"}
    unknown = sorted(tag for tag in sections.keys() - known if not tag[:1].islower())
    if unknown:
        raise ClientError(f"the file has a section {unknown[0]!r} that this server does not know", param="file")
    return sections


def _refusal(why: str) -> ClientError:
    return ClientError(f"this is no session's file: {why}", param="file", code="invalid_file")
