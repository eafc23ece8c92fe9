"""A session as the store has it and as the wire has it: the same values twice."""

import numpy as np

from sojourn.api import wire
from sojourn.core.step import TokenArray
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.store import KilledTurn, StoredSession

_TOKEN = np.dtype("<i4")
TOKEN_BYTES = _TOKEN.itemsize


def token_bytes(tokens: TokenArray) -> bytes:
    """As they go over the wire: 32 bits each, little endian."""
    return np.ascontiguousarray(tokens, _TOKEN).tobytes()


def told(stored: StoredSession, cache_salt: str) -> wire.SessionCopy:
    return wire.SessionCopy(
        token_ids=token_bytes(stored.tokens),
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
