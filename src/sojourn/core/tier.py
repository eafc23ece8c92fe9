"""What the cache and a slower tier of KV pages say to each other. Shapes only: no files, no threads, no tree.

A page of the tier is named by what it is, never by where it lay: by the chain of hashes of the tokens up to its end, which
begins with the model, the format of its bytes and the namespace. So a name found is KV that fits, whoever computed it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.core.step import PageArray, Pool

PageRows = NDArray[np.uint8]  # [pages, bytes of a page]
Names = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts since the start, and of now. Bytes are of files."""

    is_open: bool  # False: it could not be used; nothing is kept
    is_writable: bool  # False: what is there is read, nothing is added
    num_pages: tuple[int, ...]  # of each pool, of every model and format
    num_bytes: int
    bytes_max: int
    written_bytes: int
    read_bytes: int
    evicted: tuple[int, ...]  # pages of each pool that made room for others
    dropped: int  # pages that came faster than they could be written
    corrupt: int  # pages that were not what was written, and were deleted
    failed: int  # pages that the system did not read or write
    swept: int  # files that a process left unfinished when it died
    seconds_per_byte: float | None  # of reading and verifying; None: not measured
    ahead_bytes: int = 0  # written of pages that were put ahead
    unwritten: int = 0  # pages that are put and not in a file yet
    refused: int = 0  # pages that came while nothing could be written, or larger than all may be


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """Counts since the start. Pages are of all pools together."""

    store: StoreStatistics
    offered: int  # pages that left the tree
    known: int  # of them, kept already
    declined: int  # of them, faster computed again than read
    fetches: int  # requests that waited for pages
    fetched_pages: int
    fetched_tokens: int  # tails of conversations: less than a page
    failed: int  # fetches that ended early: a page was missing or damaged
    slow: int  # took longer than the request would wait
    lost: int  # what the tree had before them was evicted meanwhile
    ahead: int = 0  # pages copied ahead of their eviction
    dropped: int = 0  # of those offered, not copied since the queue had no room for them
    refused: int = 0  # of those offered, not copied since nothing could be written


@dataclass(frozen=True, slots=True, eq=False)
class KvNames:
    """What the tier calls the KV of a run of tokens, and how much of it is still to be written.

    `full` names its whole pages. In a second pool only the pages from `windows_from` on are wanted: the live window. `tail`
    names the page of the `tail_len` tokens that follow the whole ones; None: there is none.
    """

    kv_format: bytes  # the model's and its bytes': pages of another are others, whatever they are called
    page_size: int
    page_bytes: tuple[int, ...]  # of each pool
    full: Names
    windows_from: int
    tail: bytes | None
    tail_len: int
    missing: int  # pages that are in the pool and in no file yet


class KvPages(Protocol):
    """The bytes of pages: a back end."""

    @property
    def kv_format(self) -> str: ...

    def page_bytes(self, pool: Pool) -> int: ...

    def read_pages(self, pool: Pool, pages: PageArray) -> PageRows:
        """Copies of final pages; a step may be running."""
        ...

    def write_pages(self, pool: Pool, pages: PageArray, data: PageRows) -> None:
        """Into pages that no step in flight may touch."""
        ...


class Reading(Protocol):
    """Pages that are being read and verified elsewhere."""

    def is_done(self) -> bool: ...

    def rows(self) -> PageRows:
        """Once done: the pages from the first on, up to the first that was missing or damaged."""
        ...


class PageStore(Protocol):
    """Keeps pages by name. Called on the engine's thread only; returns at once, but where it says so."""

    def has(self, pool: Pool, name: bytes) -> bool: ...

    def touch(self, pool: Pool, names: Names) -> None:
        """Used now, the last one most recently."""
        ...

    def put(self, pool: Pool, name: bytes, data: bytes, wait_s: float = 0.0) -> bool:
        """Keep a page; it can be read from now on. False: dropped, for too many are still to be written.

        Blocks up to `wait_s` for room.
        """
        ...

    @property
    def room(self) -> int:
        """Bytes that can be put now without waiting."""
        ...

    def put_ahead(self, pool: Pool, name: bytes, data: bytes) -> bool:
        """As `put`, of a page that somebody still has: for it go only pages that nobody used since the start, and others
        that were put ahead. Once used it is as good as any."""
        ...

    def touch_ahead(self, pool: Pool, names: Names) -> None:
        """Of those that were put ahead and not used since: the last one is given up last."""
        ...

    @property
    def room_ahead(self) -> int:
        """Bytes that may be put ahead: what was used has the rest."""
        ...

    def num_unwritten(self) -> int:
        """Pages that are put and in no file yet."""
        ...

    def is_written(self, pool: Pool, name: bytes) -> bool:
        """Whether it is in a file."""
        ...

    def read(self, pool: Pool, names: Names, page_bytes: int) -> Reading: ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def wait(self, seconds: float) -> None:
        """Block until something has been read, or that long."""
        ...

    def statistics(self) -> StoreStatistics: ...
