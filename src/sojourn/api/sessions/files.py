"""A session as a file, and a file as what the engine takes in: the front's part of export and import. Knows no HTTP."""

from collections.abc import Mapping

import msgspec

from sojourn.api import copies, wire
from sojourn.api.sessions.dialogue import Note
from sojourn.core.errors import ClientError
from sojourn.sessions.archive import ArchivedModel, pack, split, unpack_sections
from sojourn.sessions.history import TurnRecord


def to_file(copy: wire.SessionCopy, session_id: str, card: wire.ModelCard) -> bytes:
    return pack(copies.heard(copy, session_id, copy.cache_salt), ArchivedModel(card.name, card.fingerprint))


def from_file(data: bytes, card: wire.ModelCard) -> wire.SessionCopy:
    """Raises ClientError for what is no such file, or another model's, or has notes that are not ours."""
    return from_sections(split(data), card)


def from_sections(sections: Mapping[bytes, bytes], card: wire.ModelCard) -> wire.SessionCopy:
    """As `from_file`, of the sections of its history."""
    stored = unpack_sections(sections, ArchivedModel(card.name, card.fingerprint))
    for record in stored.turns:
        _check_note(record)
    return copies.told(stored, stored.namespace)


def _check_note(record: TurnRecord) -> None:
    if not record.note:
        return
    try:
        note = msgspec.msgpack.decode(record.note, type=Note)
    except msgspec.MsgspecError as error:
        raise ClientError(f"the note of turn {record.turn} is not ours: {error}", param="file") from error
    if not all({"role", "content"} <= message.keys() for message in note.messages):
        raise ClientError(f"turn {record.turn} has a message without role and content", param="file")
