"""Files of sessions at the front's door: notes that are not ours never reach a dialogue."""

import msgspec
import numpy as np
import pytest

from sojourn.api import copies, wire
from sojourn.api.sessions.dialogue import Note
from sojourn.api.sessions.files import from_file, to_file
from sojourn.core.errors import ClientError
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.store import StoredSession

CARD = wire.ModelCard("tiny", "", "", "", 99, 512, 16, 1, "", "f16", 1, 1, ["full"], [1], fingerprint="f" * 64)


def copy_with(note: bytes) -> wire.SessionCopy:
    turns = (TurnRecord(3, 0, 2, 4, note, "stop"),)
    stored = StoredSession("a", "", True, 9.0, 0.0, 1, 4, turns, np.arange(4, dtype=np.int32), priority=5)
    return copies.told(stored, "salt")


@pytest.mark.parametrize(
    "note", [b"", msgspec.msgpack.encode(Note([{"role": "user", "content": "Hi"}], False, ["stop"], True, b"print"))]
)
def test_a_copy_comes_back_from_its_file(note: bytes) -> None:
    copy = copy_with(note)
    assert from_file(to_file(copy, "a", CARD), CARD) == copy


@pytest.mark.parametrize(
    "note",
    [
        b"\xff",
        msgspec.msgpack.encode("a"),
        msgspec.msgpack.encode([[], False, [], True]),
        msgspec.msgpack.encode(Note([{"content": "Hi"}], False, [], True, b"")),
        msgspec.msgpack.encode([[{"role": "user", "content": 7}], False, [], True, b""]),
    ],
)
def test_a_note_that_is_not_ours_is_refused(note: bytes) -> None:
    data = to_file(copy_with(note), "a", CARD)
    with pytest.raises(ClientError, match="turn 3") as caught:
        from_file(data, CARD)
    assert (caught.value.status, caught.value.param) == (400, "file")
