"""Keys and values in a session's file: its last section, `kvpg`. Knows bytes and their places; opens no file.

    length of the header u32, header as JSON, then frames, all of a size that the header says:
    frame   1 or 0 (it was gone when its turn came), 7 zeros | SHA-256 of the payload | payload

    the whole pages of the full pool, the window pages `[windows_from, pages)` where layers slide, then the page of the
    tokens behind the last whole page, of each pool

Pages have no names here: whoever takes them in names them by the history that they come with, for whoever brings it. The
format says of which model and in which form they are; those of another are of no use.
"""

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from sojourn.core.errors import ClientError

TAG = b"kvpg"
HEADER_BYTES_MAX = 4096
_LENGTH = struct.Struct("<I")
_SUM_BYTES = 32
FRAME_BYTES = 8 + _SUM_BYTES  # before the payload
_GOOD, _GONE = b"\1" + bytes(7), bytes(8)
_INT = 1 << 40
_FORMAT = re.compile("([0-9a-f]{2}){1,64}")


class KvHeader(msgspec.Struct, frozen=True):
    """`page_bytes` of each pool; `tail_tokens` 0: there is no page behind the whole ones."""

    kv_format: str
    page_bytes: list[int]
    pages: int
    windows_from: int
    tail_tokens: int


@dataclass(frozen=True, slots=True)
class Frame:
    """`index` `pages` is the tail's. `at`: where it begins in the section."""

    pool: int
    index: int
    at: int
    size: int  # of the payload


def opening(header: KvHeader) -> bytes:
    """What stands before the frames."""
    data = msgspec.json.encode(header)
    return _LENGTH.pack(len(data)) + data


def length_of(header: KvHeader) -> int:
    """Of the whole section."""
    return len(opening(header)) + sum(
        count * (FRAME_BYTES + size) for count, size in zip(_counts(header), header.page_bytes, strict=True)
    )


def read_header(start: bytes, length: int, num_tokens: int) -> KvHeader:
    """From the first `HEADER_BYTES_MAX` bytes of a section of that length, beside a history of so many tokens. ClientError for
    one that cannot be."""
    if len(start) < _LENGTH.size:
        raise _refusal("it is cut")
    (size,) = _LENGTH.unpack_from(start)
    if size > HEADER_BYTES_MAX - _LENGTH.size:
        raise _refusal("its header is too long")
    try:
        header = msgspec.json.decode(start[_LENGTH.size : _LENGTH.size + size], type=KvHeader)
    except msgspec.MsgspecError as error:
        raise _refusal(str(error)) from error
    numbers = (*header.page_bytes, header.pages, header.windows_from, header.tail_tokens)
    if not 1 <= len(header.page_bytes) <= 2 or not all(0 <= number < _INT for number in numbers):
        raise _refusal("a number in it is out of range")
    if header.pages > num_tokens:
        raise _refusal("it has more pages than the history has tokens")
    if not _FORMAT.fullmatch(header.kv_format):
        raise _refusal("its format has no name")
    if header.windows_from > header.pages or opening(header) != start[: _LENGTH.size + size]:
        raise _refusal("its header is not as this server writes it")
    if length_of(header) != length:
        raise _refusal("its length is not what its header says")
    return header


def frames(header: KvHeader, *, from_end: bool = False) -> Iterator[Frame]:
    """In the order of the file, or from its end."""
    pages, has_tail = header.pages, header.tail_tokens > 0
    runs = [(pool, range(first, pages)) for pool, first in _firsts(header)]
    runs += [(pool, range(pages, pages + has_tail)) for pool in range(len(header.page_bytes))]
    at = length_of(header) if from_end else len(opening(header))
    for pool, indices in reversed(runs) if from_end else runs:
        size = header.page_bytes[pool]
        for index in reversed(indices) if from_end else indices:
            at -= (FRAME_BYTES + size) * from_end
            yield Frame(pool, index, at, size)
            at += (FRAME_BYTES + size) * (not from_end)


def frame(payload: bytes | bytearray | None, size: int) -> bytes:
    """None: there is no payload any more."""
    if payload is None:
        return _GONE + bytes(_SUM_BYTES + size)
    return _GOOD + hashlib.sha256(payload).digest() + payload


def payload_of(data: bytes) -> bytes | None:
    """None: there was none. ClientError for a frame that is not what was written."""
    payload = data[FRAME_BYTES:]
    if data[:8] == _GONE:
        return None
    if data[:8] != _GOOD or hashlib.sha256(payload).digest() != data[8:FRAME_BYTES]:
        raise _refusal("a page in it is not what its sum says")
    return payload


def _firsts(header: KvHeader) -> list[tuple[int, int]]:
    """Pool, and the first page of it that there is."""
    return list(enumerate([0, header.windows_from][: len(header.page_bytes)]))


def _counts(header: KvHeader) -> list[int]:
    return [header.pages - first + (header.tail_tokens > 0) for _, first in _firsts(header)]


def _refusal(why: str) -> ClientError:
    return ClientError(f"this is no session's file: in its section of KV, {why}", param="file", code="invalid_file")
