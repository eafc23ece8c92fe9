"""Page files: one page each, written whole or not at all, verified when read. Knows names and bytes, no order of use.

    <hex of the name>.<pool>     magic | SHA-256 of pool, name and payload | payload
    .tmp-<hex>.<pool>            unfinished: a process that died left it, the next start removes it

The time of a file's last change is not a time but a count of uses, so that clocks that jump change no order.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sojourn.core.step import Pool

MAGIC = b"SJKVPG01"
HEADER_BYTES = len(MAGIC) + 32
TEMPORARY = ".tmp-"
PageId = tuple[Pool, bytes]


class Found(Enum):
    GOOD = "good"
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Entry:
    """A page file as a folder lists it."""

    page: PageId
    size: int
    used: int


def name_of(page: PageId) -> str:
    pool, name = page
    return f"{name.hex()}.{int(pool)}"


def file_bytes(payload: int) -> int:
    return HEADER_BYTES + payload


def write_all(directory: int, pages: list[tuple[PageId, bytes, int]]) -> None:
    """Each page with its count of uses: all are written before the first is synced. Raises OSError with no file half there.

    A file has its name only after its bytes are on the disk; the names are there for good when this returns.
    """
    unfinished: list[str] = []
    descriptors: list[int] = []
    try:
        for page, data, used in pages:
            temporary = TEMPORARY + name_of(page)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=directory)
            unfinished.append(temporary)
            descriptors.append(descriptor)
            _write(descriptor, MAGIC + _checksum(page, data))
            _write(descriptor, data)
            os.utime(descriptor, (used, used))
        for descriptor in descriptors:
            os.fsync(descriptor)
        for page, _, _ in pages:
            os.rename(TEMPORARY + name_of(page), name_of(page), src_dir_fd=directory, dst_dir_fd=directory)
            unfinished.remove(TEMPORARY + name_of(page))
        os.fsync(directory)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        for temporary in unfinished:
            os.unlink(temporary, dir_fd=directory)


def read_into(directory: int, page: PageId, target: memoryview) -> Found:
    """Fill `target` with the page's payload, which has that size or is corrupt. Raises OSError of the system."""
    try:
        descriptor = os.open(
            name_of(page), os.O_RDONLY | os.O_NONBLOCK, dir_fd=directory
        )  # a pipe would wait for a writer
    except FileNotFoundError:
        return Found.MISSING
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file_bytes(len(target)):
            return Found.CORRUPT
        header = os.read(descriptor, HEADER_BYTES)
        filled = 0
        while filled < len(target):
            count = os.readv(descriptor, [target[filled:]])
            if count == 0:
                return Found.CORRUPT
            filled += count
        return Found.GOOD if header == MAGIC + _checksum(page, target) else Found.CORRUPT
    finally:
        os.close(descriptor)


def is_there(directory: int, page: PageId, payload: int) -> bool:
    """A file of that size; whether it is what was written, and can be read, reading it tells."""
    try:
        return os.stat(name_of(page), dir_fd=directory).st_size == file_bytes(payload)
    except OSError:
        return False


def mark_used(directory: int, page: PageId, used: int) -> None:
    try:
        os.utime(name_of(page), (used, used), dir_fd=directory)
    except FileNotFoundError:
        return


def remove(directory: int, page: PageId) -> None:
    try:
        os.unlink(name_of(page), dir_fd=directory)
    except FileNotFoundError:
        return


def scan(path: Path) -> tuple[list[Entry], list[str]]:
    """Page files, and the names of unfinished ones. What has other names, or is no file, is not ours."""
    entries: list[Entry] = []
    unfinished: list[str] = []
    with os.scandir(path) as found:
        for one in found:
            if one.name.startswith(TEMPORARY):
                unfinished.append(one.name)
            elif (page := _page_of(one.name)) is not None and one.is_file(follow_symlinks=False):
                status = one.stat(follow_symlinks=False)
                entries.append(Entry(page, status.st_size, int(status.st_mtime)))
    return sorted(entries, key=lambda entry: entry.used), unfinished


def _page_of(name: str) -> PageId | None:
    stem, _, pool = name.partition(".")
    try:
        return Pool(int(pool)), bytes.fromhex(stem)
    except ValueError:
        return None


def _checksum(page: PageId, data: bytes | memoryview) -> bytes:
    pool, name = page
    digest = hashlib.sha256(bytes([int(pool)]) + name)
    digest.update(data)
    return digest.digest()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
