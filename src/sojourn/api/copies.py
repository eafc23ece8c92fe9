"""A session as the store has it, as the wire has it, and as a file has it: the same values three times."""

import msgspec
import numpy as np

from sojourn.api import wire
from sojourn.api.sessions.dialogue import Note
from sojourn.core.errors import ClientError
from sojourn.sessions.archive import ArchivedModel, pack, unpack
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.store import KilledTurn, StoredSession

_TOKEN = np.dtype("<i4")


def told(stored: StoredSession, cache_salt: str) -> wire.SessionCopy:
    return wire.SessionCopy(
        token_ids=np.ascontiguousarray(stored.tokens, _TOKEN).tobytes(),
        turns=[wire.KeptTurn(t.turn, t.start, t.output_start, t.end, t.reason, t.note) for t in stored.turns],
        epoch=stored.epoch,
        next_turn=stored.next_turn,
        has_begun=stored.has_begun,
        idle_timeout_s=stored.idle_timeout_s,
        cache_salt=cache_salt,
        priority=stored.priority,
    )


def heard(copy: wire.SessionCopy, session_id: str, namespace: str) -> StoredSession:
    return StoredSession(
        session_id=session_id,
        namespace=namespace,
        has_begun=copy.has_begun,
        idle_timeout_s=copy.idle_timeout_s,
        used_at=0.0,
        epoch=copy.epoch,
        next_turn=copy.next_turn,
        turns=tuple(TurnRecord(t.turn, t.start, t.output_start, t.end, t.note, t.reason) for t in copy.turns),
        tokens=np.frombuffer(copy.token_ids, _TOKEN).astype(np.int32),
        priority=copy.priority,
    )


def killed(turn: KilledTurn | None) -> wire.Killed | None:
    return None if turn is None else wire.Killed(len(turn.prompt_ids), turn.output_ids.tolist(), turn.note)


def to_file(copy: wire.SessionCopy, session_id: str, card: wire.ModelCard) -> bytes:
    return pack(heard(copy, session_id, copy.cache_salt), ArchivedModel(card.name, card.fingerprint))


def from_file(data: bytes, card: wire.ModelCard) -> wire.SessionCopy:
    """Raises ClientError for what is no such file, or another model's, or has notes that are not ours."""
    stored = unpack(data, ArchivedModel(card.name, card.fingerprint))
    for record in stored.turns:
        _check_note(record)
    return told(stored, stored.namespace)


def _check_note(record: TurnRecord) -> None:
    if not record.note:
        return
    try:
        note = msgspec.msgpack.decode(record.note, type=Note)
    except msgspec.MsgspecError as error:
        raise ClientError(f"the note of turn {record.turn} is not ours: {error}", param="file") from error
    if not all({"role", "content"} <= message.keys() for message in note.messages):
        raise ClientError(f"turn {record.turn} has a message without role and content", param="file")
