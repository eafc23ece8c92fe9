"""A session's file as it arrives: summed on the way, in memory if it is short, else in a file without a name.

So nothing is left of it, however its request ends. Knows sections and sums; knows no HTTP.
"""

import asyncio
import hashlib
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sojourn.api import wire
from sojourn.api.copies import TOKEN_BYTES
from sojourn.api.engine_link import OverloadedError
from sojourn.api.errors import LimitError, TooLargeError
from sojourn.api.sessions import files
from sojourn.api.settings import FrontSettings
from sojourn.core.errors import ClientError
from sojourn.sessions import archive, archive_kv
from sojourn.sessions.archive_kv import Frame, KvHeader

MEMORY_BYTES = 8 << 20
BATCH_BYTES = 1 << 20
AT_ONCE = 2  # times the longest file, of all that are arriving


@dataclass(frozen=True, slots=True)
class Arrived:
    """A whole file: its history, and where its KV is, if it has any."""

    copy: wire.SessionCopy
    kv: KvHeader | None = None
    kv_at: int = 0


class Uploads:
    """All that are arriving: together they are bounded, too."""

    def __init__(self, settings: FrontSettings) -> None:
        self.history_bytes_max = settings.body_bytes_max
        head = settings.body_bytes_max + archive.TABLE_BYTES_MAX + archive_kv.HEADER_BYTES_MAX
        self.kept_bytes_max = settings.import_bytes_max if settings.import_kv else head
        self.bytes_max = AT_ONCE * settings.import_bytes_max
        self.num_bytes = 0

    def begin(self) -> "Upload":
        return Upload(self)


class Upload:
    """One file. `take` its pieces, then `read` it; only what is inside the `with` has it."""

    def __init__(self, all_of_them: Uploads) -> None:
        self._all = all_of_them
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115 - closed by `__exit__`
        self._batch = bytearray()
        self._digest = hashlib.sha256()
        self._last = bytearray()  # bytes that may be the file's sum, and are not in the digest
        self._length = self._kept = 0
        self._taken = 0  # bytes, as counted in all of them

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.num_bytes -= self._taken
        self._file.close()

    async def take(self, data: bytes) -> None:
        """The next piece. LimitError when too much is arriving at once."""
        if self._all.num_bytes + len(data) > self._all.bytes_max:
            raise LimitError("too many files of sessions are arriving", param="file", code="too_many_imports")
        self._all.num_bytes += len(data)
        self._taken += len(data)
        self._batch += data
        if len(self._batch) >= BATCH_BYTES:
            await asyncio.to_thread(self._put)

    def read(self, card: wire.ModelCard) -> Arrived:
        """What arrived, checked from its first byte to its last. ClientError for what is no session's file."""
        self._put()
        places = archive.places_of(
            self.part(0, archive.TABLE_BYTES_MAX), self._length, is_whole=self._digest.digest() == self._last
        )
        kv = places.pop(archive_kv.TAG, None)
        size = sum(length for _, length in places.values())
        if size > self._all.history_bytes_max:
            raise TooLargeError(
                f"its history is over {self._all.history_bytes_max:,} bytes", param="file", code="body_too_large"
            )
        if kv is not None and any(place > kv[0] for place, _ in places.values()):
            raise ClientError("this is no session's file: its KV is not at its end", param="file", code="invalid_file")
        sections = {tag: self.part(place, length) for tag, (place, length) in places.items()}
        copy = files.from_sections(sections, card)
        if kv is None:
            return Arrived(copy)
        start = self.part(kv[0], min(kv[1], archive_kv.HEADER_BYTES_MAX))
        header = archive_kv.read_header(start, kv[1], len(copy.token_ids) // TOKEN_BYTES)
        if self._kept == self._length:  # else nobody will look at it
            for frame in archive_kv.frames(header):
                archive_kv.payload_of(self.frame(kv[0], frame))
        return Arrived(copy, header, kv[0])

    def frame(self, kv_at: int, frame: Frame) -> bytes:
        return self.part(kv_at + frame.at, archive_kv.FRAME_BYTES + frame.size)

    def part(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)

    def _put(self) -> None:
        """Sum the batch, and keep it as far as anything of it is wanted later."""
        self._last += self._batch
        summed = max(0, len(self._last) - archive.SUM_BYTES)
        self._digest.update(memoryview(self._last)[:summed])
        del self._last[:summed]
        kept = self._batch[: max(0, self._all.kept_bytes_max - self._kept)]
        try:
            self._file.write(kept)
        except OSError as error:
            raise OverloadedError(f"there is no room for the file while it arrives: {error.strerror}") from error
        self._kept += len(kept)
        self._length += len(self._batch)
        self._batch.clear()
