"""A session's file with its KV, made while it is sent: the history, then pages from the files of the disk tier, then the sum.

    the engine has what is missing written (asked again and again) ─▶ page files ─▶ frames ─▶ client

Nobody holds the whole of it. A page that is given up before its turn comes leaves a gap, and the file is whole without it.
"""

import asyncio
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sojourn.api import copies, wire, wire_kv
from sojourn.api.front import Front
from sojourn.api.kv import NO_TIER
from sojourn.core.errors import ClientError, ConflictError
from sojourn.core.step import MODEL_POOLS
from sojourn.disk import files
from sojourn.disk.files import Found, PageId
from sojourn.sessions import archive, archive_kv
from sojourn.sessions.archive import ArchivedModel
from sojourn.sessions.archive_kv import Frame, KvHeader

PAUSE_S = 0.02  # before the engine is asked again
PATIENCE_S = 2.0  # for the next page to get into its file; then what there is is sent
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Outgoing:
    """`start` is all up to the frames; `tail` names the page behind the whole ones."""

    start: bytes
    header: KvHeader
    names: list[bytes]
    folder: Path

    @property
    def length(self) -> int:
        frames = sum(archive_kv.FRAME_BYTES + frame.size for frame in archive_kv.frames(self.header))
        return len(self.start) + frames + archive.SUM_BYTES

    def chunks(self) -> Iterator[bytes]:
        """The file, from its first byte to its last."""
        digest = hashlib.sha256(self.start)
        yield self.start
        with _opened(self.folder) as directory:
            chunk = bytearray()
            for frame in archive_kv.frames(self.header):
                chunk += archive_kv.frame(self._payload(directory, frame), frame.size)
                if len(chunk) >= CHUNK_BYTES:
                    digest.update(chunk)
                    yield bytes(chunk)
                    chunk.clear()
        digest.update(chunk)
        yield bytes(chunk) + digest.digest()

    def _payload(self, directory: int | None, frame: Frame) -> bytearray | None:
        if directory is None:
            return None
        payload = bytearray(frame.size)
        page = MODEL_POOLS[frame.pool], self.names[frame.index]
        try:
            found = files.read_into(directory, page, memoryview(payload))
        except OSError:  # the disk refuses it: as if it were gone
            return None
        return payload if found is Found.GOOD else None


async def outgoing_of(front: Front, session_id: str, namespace: str) -> Outgoing:
    """Raises ClientError where there are no files of KV, ConflictError for a session that is rewound meanwhile."""
    folder = front.settings.disk_cache
    if folder is None:
        raise ClientError(NO_TIER, param="kv", code="no_disk_cache")
    copy = await front.link.ask(wire.CopySession(session_id, namespace), wire.SessionCopy)
    kept = await _kept(front, session_id, namespace, copy)
    return await asyncio.to_thread(partial(_outgoing, copy, kept, session_id, front.text.card, Path(folder)))


async def _kept(front: Front, session_id: str, namespace: str, copy: wire.SessionCopy) -> wire_kv.KvFiles:
    """Once all of it is in files, or nothing more seems to get there."""
    command = wire_kv.KeepKv(session_id, namespace, len(copy.token_ids) // copies.TOKEN_BYTES)
    clock = front.world.clock
    least, since = None, clock()
    while True:
        kept = await front.link.ask(command, wire_kv.KvFiles)
        if kept.epoch != copy.epoch:
            raise ConflictError(
                f"session {session_id} was rewound while it was exported", param="session_id", code="history_changed"
            )
        if least is None or kept.missing < least:
            least, since = kept.missing, clock()
        if kept.missing == 0 or clock() - since > PATIENCE_S:
            return kept
        await asyncio.sleep(PAUSE_S)


def _outgoing(
    copy: wire.SessionCopy, kept: wire_kv.KvFiles, session_id: str, card: wire.ModelCard, folder: Path
) -> Outgoing:
    model = ArchivedModel(card.name, card.fingerprint)
    history = archive.sections_of(copies.heard(copy, session_id, copy.cache_salt), model)
    pages, has_tail = _there(kept, folder)
    header = KvHeader(
        kv_format=kept.kv_format.hex(),
        page_bytes=kept.page_bytes,
        pages=pages,
        windows_from=min(kept.windows_from, pages),
        tail_tokens=kept.tail_len if has_tail else 0,
    )
    last = archive_kv.TAG, archive_kv.length_of(header)
    start = archive.opening(history, last) + archive_kv.opening(header)
    names = kept.full[:pages] + ([kept.tail] if has_tail and kept.tail is not None else [])
    return Outgoing(start, header, names, folder)


def _there(kept: wire_kv.KvFiles, folder: Path) -> tuple[int, bool]:
    """Whole pages in files up to the first that is not, and whether the page behind all of them is."""
    full, pools = MODEL_POOLS[0], MODEL_POOLS[: len(kept.page_bytes)]
    with _opened(folder) as directory:

        def has(page: PageId, payload: int) -> bool:
            return directory is not None and files.is_there(directory, page, payload)

        pages = next(
            (i for i, name in enumerate(kept.full) if not has((full, name), kept.page_bytes[0])), len(kept.full)
        )
        tail = kept.tail if pages == len(kept.full) else None
        is_whole = tail is not None and all(
            has((pool, tail), size) for pool, size in zip(pools, kept.page_bytes, strict=True)
        )
    return pages, is_whole


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """None: it is gone, or cannot be read, and so are all pages in it."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield directory
    finally:
        os.close(directory)
