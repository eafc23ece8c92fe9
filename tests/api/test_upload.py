"""Files of sessions on their way in and out: in pieces, bounded, and without a trace."""

import asyncio
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.api.test_session_files import CARD

from sojourn.api import copies
from sojourn.api.errors import LimitError, TooLargeError
from sojourn.api.sessions import files as session_files
from sojourn.api.sessions.kv_out import CHUNK_BYTES, Outgoing
from sojourn.api.sessions.upload import AT_ONCE, MEMORY_BYTES, Arrived, Upload, Uploads
from sojourn.api.settings import FrontSettings
from sojourn.core.errors import ClientError
from sojourn.core.step import Pool
from sojourn.disk import files
from sojourn.sessions import archive, archive_kv
from sojourn.sessions.archive_kv import KvHeader
from sojourn.sessions.history import TurnRecord
from sojourn.sessions.store import StoredSession

PAGE = 300_000
SETTINGS = FrontSettings("", import_bytes_max=32 << 20, import_kv=True)
MODEL = archive.ArchivedModel(CARD.name, CARD.fingerprint)


def history(tokens: int = 200) -> StoredSession:
    turns = (TurnRecord(0, 0, 2, tokens, b"", "stop"),)
    return StoredSession("a", "", True, None, 0.0, 0, 1, turns, np.arange(tokens, dtype=np.int32) % 99)


def page(number: int) -> bytes:
    return bytes([number]) * PAGE


def outgoing(folder: Path, pages: int) -> Outgoing:
    """Of a session whose pages are in files, but for the one of number 1."""
    folder.mkdir()
    header = KvHeader("ab" * 24, [PAGE], pages, pages, 3)
    names = [bytes([number]) * 24 for number in range(pages + 1)]
    last = archive_kv.TAG, archive_kv.length_of(header)
    start = archive.opening(archive.sections_of(history(), MODEL), last) + archive_kv.opening(header)
    for number, name in enumerate(names):
        if number != 1:
            path = folder / files.name_of((Pool.FULL, name))
            summed = hashlib.sha256(bytes([int(Pool.FULL)]) + name + page(number)).digest()
            path.write_bytes(files.MAGIC + summed + page(number))
    return Outgoing(start, header, names, folder)


def arrives(upload: Upload, chunks: Iterator[bytes]) -> Arrived:
    async def take() -> None:
        for chunk in chunks:
            await upload.take(chunk)

    asyncio.run(take())
    return upload.read(CARD)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files lie."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_a_file_goes_and_comes_in_pieces_and_has_no_name_meanwhile(folder: Path, tmp_path: Path) -> None:
    going = outgoing(tmp_path / "kv", pages=60)
    assert going.length > MEMORY_BYTES
    sizes = [len(chunk) for chunk in going.chunks()]
    assert sum(sizes) == going.length
    assert max(sizes) <= CHUNK_BYTES + archive_kv.FRAME_BYTES + PAGE
    uploads = Uploads(SETTINGS)
    with uploads.begin() as upload:
        arrived = arrives(upload, going.chunks())
        assert uploads.num_bytes == going.length
        assert list(folder.iterdir()) == []
        assert arrived.kv == going.header
        frames = archive_kv.frames(going.header)
        payloads = [archive_kv.payload_of(upload.frame(arrived.kv_at, frame)) for frame in frames]
        assert payloads == [None if number == 1 else page(number) for number in range(61)]
        assert copies.heard(arrived.copy, "a", "").tokens.tolist() == history().tokens.tolist()
    assert uploads.num_bytes == 0


def test_whole_and_refused_whole(folder: Path, tmp_path: Path) -> None:
    whole = b"".join(outgoing(tmp_path / "kv", pages=4).chunks())
    assert archive.split(whole)[b"TOKN"] == history().tokens.tobytes()
    wrong = [whole[:length] for length in range(0, len(whole), 40_001)]
    wrong += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(0, len(whole), 40_001)]
    for data in [*wrong, whole + b"\0"]:
        with Uploads(SETTINGS).begin() as upload, pytest.raises(ClientError) as caught:
            arrives(upload, iter([data[:7], data[7:]]))
        assert caught.value.code in ("invalid_file", "unknown_version")
    with Uploads(SETTINGS).begin() as upload:
        assert arrives(upload, iter([whole])).copy == session_files.from_file(whole, CARD)


def test_where_kv_is_not_taken_it_is_not_kept_either(folder: Path, tmp_path: Path) -> None:
    going = outgoing(tmp_path / "kv", pages=60)
    uploads = Uploads(replace(SETTINGS, import_kv=False))
    with uploads.begin() as upload:
        arrived = arrives(upload, going.chunks())
        assert arrived.kv == going.header
        kept = len(upload.part(0, 1 << 30))
    assert kept == uploads.kept_bytes_max < going.length


def test_all_that_arrive_are_bounded_together_and_each_history_by_itself(folder: Path) -> None:
    settings = replace(SETTINGS, import_bytes_max=1 << 20, body_bytes_max=1000)
    uploads = Uploads(settings)
    with uploads.begin() as one, uploads.begin() as two:
        asyncio.run(one.take(bytes(AT_ONCE << 20)))
        with pytest.raises(LimitError) as full:
            asyncio.run(two.take(b"x"))
        assert (full.value.status, full.value.code) == (429, "too_many_imports")
    assert uploads.num_bytes == 0
    data = archive.join(archive.sections_of(history(400), MODEL))
    with uploads.begin() as upload, pytest.raises(TooLargeError) as large:
        arrives(upload, iter([data]))
    assert (large.value.status, large.value.param) == (413, "file")
