"""Pages of KV in files: an index in memory, one thread that writes and one that reads. Implements `core.tier.PageStore`.

    put ──▶ queue (bounded, in bytes) ──▶ writer: removes what has to go, writes, syncs, renames
    read ─▶ queue ──▶ reader: from the write queue or the file, verified ──▶ Reading

A name is in the index from `put` on, and files that left the index are removed before the next is written: the folder
never has more than the cap. What the system refuses is said once, counted, and the engine goes on without. Knows no tree,
no tokens and no requests; time and the voice to warn with are given.
"""

import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Event, Thread
from weakref import ref

import numpy as np

from sojourn.core.clock import Clock
from sojourn.core.errors import law
from sojourn.core.step import MODEL_POOLS, Pool
from sojourn.core.tier import Names, PageRows, StoreStatistics
from sojourn.disk import files
from sojourn.disk.files import Found, PageId
from sojourn.disk.index import Index

QUEUE_BYTES = 64 << 20
BATCH_PAGES = 16  # written before the first of them is synced
PROBE_BYTES = 1 << 20
RETRY_S = 60.0  # after the system refused a write
LOCK_POLL_S = 0.1
_WEIGHT = 0.2  # of the newest reading in the measured rate
_PROBE = Pool.FULL, b"probe"  # no page has so short a name
_FULL = (errno.ENOSPC, errno.EDQUOT)

Warn = Callable[[str], None]


class FileReading:
    """Implements `core.tier.Reading`. Filled by the reader; skipped if nobody holds it any more."""

    def __init__(self, pages: list[PageId], page_bytes: int) -> None:
        self.pages = pages
        self.page_bytes = page_bytes
        self._rows: PageRows | None = None

    def is_done(self) -> bool:
        return self._rows is not None

    def rows(self) -> PageRows:
        rows = self._rows
        law(rows is not None, "pages are taken before they are read")
        assert rows is not None
        return rows

    def finish(self, rows: PageRows) -> None:
        self._rows = rows


class DiskStore:
    """Owns a folder: one process at a time. `close` ends its threads."""

    def __init__(
        self,
        path: Path,
        bytes_max: int,
        clock: Clock,
        warn: Warn,
        *,
        queue_bytes: int = QUEUE_BYTES,
        lock_wait_s: float = 0.0,
    ) -> None:
        """`lock_wait_s`: for another process that has the folder and may be about to end."""
        self._path = path
        self._clock = clock
        self._warn = warn
        self._queue_bytes = queue_bytes
        self._changed = Condition()
        self._index = Index(bytes_max)
        self._data: dict[PageId, bytes] = {}  # put, and not in a file yet
        self._data_bytes = 0
        self._used: dict[PageId, int] = {}  # their counts of uses
        self._to_write: deque[PageId] = deque()
        self._to_remove: list[PageId] = []
        self._to_mark: dict[PageId, int] = {}
        self._to_read: deque[ref[FileReading]] = deque()
        self._has_read = Event()
        self._is_writing = self._is_reading = False
        self._is_closing = False
        self._retry_at: float | None = None  # writes are off until then
        self._keeps_files = False  # what is to be removed stays until then, too: the system refused that
        self._has_warned = False
        self._written = self._ahead = self._read = self._corrupt = self._failed = self._swept = 0
        self._dropped = self._refused = 0
        self._evicted = [0] * len(MODEL_POOLS)
        self._rate: float | None = None
        self._directory = -1
        self._lock = -1
        self._threads: list[Thread] = []
        try:
            self._open(lock_wait_s)
        except OSError as error:
            self._give_up_folder()
            self._index = Index(bytes_max)  # whatever is there, nobody can have it
            self._say(f"{path} cannot be used: {_reason(error)}")

    @property
    def is_open(self) -> bool:
        return bool(self._threads) and not self._is_closing

    # -- PageStore
    def has(self, pool: Pool, name: bytes) -> bool:
        return (pool, name) in self._index

    def touch(self, pool: Pool, names: Names) -> None:
        with self._changed:
            for name in names:
                self._use((pool, name))
            self._changed.notify_all()

    def put(self, pool: Pool, name: bytes, data: bytes, wait_s: float = 0.0) -> bool:
        page = pool, name
        size = files.file_bytes(len(data))
        with self._changed:
            if page in self._index:
                self._use(page)
                return True
            if not self._may_write() or size > self._index.bytes_max:
                self._refused += 1
                return False
            if not self._has_room(len(data), wait_s):
                self._dropped += 1
                return False
            self._take(page, data, self._index.add(page, size))
        return True

    def put_ahead(self, pool: Pool, name: bytes, data: bytes) -> bool:
        page = pool, name
        size = files.file_bytes(len(data))
        with self._changed:
            if page in self._index:
                return True
            if not self._may_write() or size > self._index.room_ahead or not self._has_room(len(data), 0.0):
                return False
            self._take(page, data, self._index.add_ahead(page, size))
        return True

    def touch_ahead(self, pool: Pool, names: Names) -> None:
        with self._changed:
            for name in names:
                self._mark((pool, name), self._index.touch_ahead((pool, name)))
            self._changed.notify_all()

    @property
    def room(self) -> int:
        return self._queue_bytes - self._data_bytes if self._is_writable() else 0

    @property
    def room_ahead(self) -> int:
        return self._index.room_ahead

    def num_unwritten(self) -> int:
        return len(self._data)

    def is_written(self, pool: Pool, name: bytes) -> bool:
        return (pool, name) in self._index and (pool, name) not in self._data

    def read(self, pool: Pool, names: Names, page_bytes: int) -> FileReading:
        reading = FileReading([(pool, name) for name in names], page_bytes)
        with self._changed:
            for page in reversed(reading.pages):  # a page is of no use without those before it: they go last
                self._use(page)
            if self.is_open:
                # While the disk hangs nobody else takes out what nobody waits for any more.
                self._to_read = deque(one for one in self._to_read if one() is not None)
                self._to_read.append(ref(reading))
                self._changed.notify_all()
            else:
                reading.finish(np.empty((0, page_bytes), dtype=np.uint8))
        return reading

    def clear(self) -> None:
        with self._changed:
            for page in self._index.take_all():
                self._forget(page)
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        self._has_read.wait(seconds)
        self._has_read.clear()

    def statistics(self) -> StoreStatistics:
        with self._changed:
            return StoreStatistics(
                is_open=self.is_open,
                is_writable=self._is_writable(),
                num_pages=self._index.num_pages,
                num_bytes=self._index.num_bytes,
                bytes_max=self._index.bytes_max,
                written_bytes=self._written,
                read_bytes=self._read,
                evicted=tuple(self._evicted),
                dropped=self._dropped,
                refused=self._refused,
                corrupt=self._corrupt,
                failed=self._failed,
                swept=self._swept,
                seconds_per_byte=self._rate,
                ahead_bytes=self._ahead,
                unwritten=len(self._data),
            )

    # -- ends
    def drain(self, seconds: float) -> bool:
        """Block until everything put is in its file and everything asked for was read. False: it took longer."""
        with self._changed:
            return self._changed.wait_for(self._is_quiet, seconds)

    def close(self, seconds: float = 0.0, hang_s: float | None = None) -> None:
        """Write what is queued, for `seconds` at most, and end. Pages that are not written are lost.

        Threads that a call to the disk holds are waited for `hang_s`, all together, and not again by a second call: the
        process ends without them. None: until they have ended.
        """
        self.drain(seconds)
        with self._changed:
            ends_at = None if hang_s is None else self._clock() + (0.0 if self._is_closing else hang_s)
            self._is_closing = True
            self._to_write.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(None if ends_at is None else max(0.0, ends_at - self._clock()))
        if not any(thread.is_alive() for thread in self._threads):  # else a disk hangs: the process ends without it
            self._threads.clear()
            self._give_up_folder()

    # -- inside; the condition is held
    def _take(self, page: PageId, data: bytes, used: int) -> None:
        """It is in the index; what has no room there any more goes."""
        self._data[page], self._used[page] = data, used
        self._data_bytes += len(data)
        self._to_write.append(page)
        for gone in self._index.overflow():
            self._evicted[MODEL_POOLS.index(gone[0])] += 1
            self._forget(gone)
        self._changed.notify_all()

    def _use(self, page: PageId) -> None:
        self._mark(page, self._index.touch(page))

    def _mark(self, page: PageId, used: int | None) -> None:
        if used is not None:
            (self._used if page in self._data else self._to_mark)[page] = used

    def _is_writable(self) -> bool:
        return self.is_open and (self._retry_at is None or self._clock() >= self._retry_at)

    def _may_write(self) -> bool:
        if not self._is_writable():
            return False
        self._retry_at, self._keeps_files = None, False
        return True

    def _has_room(self, size: int, wait_s: float) -> bool:
        def fits() -> bool:
            return self._data_bytes + size <= self._queue_bytes or not self._data

        return fits() or (wait_s > 0 and self._changed.wait_for(fits, wait_s) and self._may_write())

    def _forget(self, page: PageId) -> None:
        """It has left the index: out of the queue, or to be removed. One that is being written is removed after that."""
        self._take_data(page)
        self._to_mark.pop(page, None)
        self._to_remove.append(page)

    def _take_data(self, page: PageId) -> None:
        data = self._data.pop(page, None)
        if data is not None:
            self._data_bytes -= len(data)
            del self._used[page]

    def _is_quiet(self) -> bool:
        """Nothing waits for a thread. One that cannot be told from outside: none is left."""
        busy = self._has_to_write() or self._to_read or self._is_writing or self._is_reading
        return not busy or not self._threads

    def _has_to_write(self) -> bool:
        """Something to do for the writer, and nothing against it."""
        return bool(self._to_write) or (bool(self._to_remove or self._to_mark) and not self._keeps_files)

    def _say(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"the disk cache: {what}; serving goes on without it")

    # -- the folder
    def _open(self, lock_wait_s: float) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        self._lock = os.open(".lock", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=self._directory)
        tries = int(lock_wait_s / LOCK_POLL_S)
        while not self._take_lock():
            if tries <= 0:
                raise OSError(errno.EBUSY, "another process uses it")
            tries -= 1
            Event().wait(LOCK_POLL_S)
        if os.fstat(self._directory).st_mode & 0o022:
            self._warn(f"the disk cache: others may write into {self._path}, and what they put there may be read as KV")
        files.remove(self._directory, _PROBE)  # of a process that was killed
        entries, unfinished = files.scan(self._path)
        for name in unfinished:
            os.unlink(name, dir_fd=self._directory)
        self._swept = len(unfinished)
        self._index.fill(entries)
        for page in self._index.overflow():
            files.remove(self._directory, page)
        try:
            self._probe()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._refuse_for_now(error)
        for work in (self._write_loop, self._read_loop):
            self._threads.append(Thread(target=work, name=f"sojourn-disk{work.__name__}", daemon=True))
        for thread in self._threads:
            thread.start()

    def _take_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _probe(self) -> None:
        """Whether a page can be written and comes back; what reading costs, until pages have been read."""
        target = bytearray(PROBE_BYTES)
        try:
            files.write_all(self._directory, [(_PROBE, bytes(PROBE_BYTES), 0)])
            began = self._clock()
            found = files.read_into(self._directory, _PROBE, memoryview(target))
            self._rate = (self._clock() - began) / PROBE_BYTES
        finally:
            files.remove(self._directory, _PROBE)
        if found is not Found.GOOD:
            raise OSError(errno.EIO, "what is written to it does not come back")

    def _give_up_folder(self) -> None:
        for descriptor in (self._lock, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._directory = -1

    # -- the writer's thread
    def _write_loop(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._has_to_write() or self._is_closing)
                if not self._has_to_write():
                    return
                self._is_writing = True
                removals, self._to_remove = self._to_remove, []
                marks, self._to_mark = self._to_mark, {}
                batch = self._next_batch()
            try:
                while removals:
                    files.remove(self._directory, removals[-1])
                    removals.pop()
                for page, used in marks.items():
                    files.mark_used(self._directory, page, used)
                if batch:
                    files.write_all(self._directory, batch)
            except OSError as error:
                self._refused_by_system(error, removals)
                continue
            with self._changed:
                for page, data, used in batch:
                    self._written += files.file_bytes(len(data))
                    self._ahead += files.file_bytes(len(data)) if self._index.is_ahead(page) else 0
                    if self._data.get(page) is data:
                        if self._used[page] != used:  # since it was taken
                            self._to_mark[page] = self._used[page]
                        self._take_data(page)

    def _next_batch(self) -> list[tuple[PageId, bytes, int]]:
        batch: list[tuple[PageId, bytes, int]] = []
        while self._to_write and len(batch) < BATCH_PAGES:
            page = self._to_write.popleft()
            data = self._data.get(page)
            if data is not None and all(other != page for other, _, _ in batch):
                batch.append((page, data, self._used[page]))
        return batch

    def _refused_by_system(self, error: OSError, removals: list[PageId]) -> None:
        """A full disk, or worse: what is queued is lost, and nothing is written for a while.

        Files that could not be removed still are: while the account is wrong, nothing is added.
        """
        with self._changed:
            self._failed += len(self._data)
            for page in list(self._data):
                self._index.drop(page)
                self._forget(page)
            self._to_write.clear()
            self._to_remove += removals
            self._keeps_files = bool(removals)
            self._refuse_for_now(error)

    def _refuse_for_now(self, error: OSError) -> None:
        self._retry_at = self._clock() + RETRY_S
        self._say(f"writing to {self._path} failed: {_reason(error)}")

    # -- the reader's thread
    def _read_loop(self) -> None:
        while True:
            with self._changed:
                self._is_reading = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._to_read or self._is_closing)
                if not self._to_read:
                    return
                self._is_reading = True
                reading = self._to_read.popleft()()
            if reading is not None:
                self._fill(reading)
            del reading
            self._has_read.set()

    def _fill(self, reading: FileReading) -> None:
        rows = np.empty((len(reading.pages), reading.page_bytes), dtype=np.uint8)
        began, from_files, good = self._clock(), 0, 0
        for page, row in zip(reading.pages, rows, strict=True):
            with self._changed:
                data = None if self._is_closing else self._data.get(page)
            if data is not None and len(data) == reading.page_bytes:
                row[:] = np.frombuffer(data, dtype=np.uint8)
            elif self._is_closing or not self._read_file(page, row.data):
                break
            else:
                from_files += 1
            good += 1
        num_bytes = from_files * files.file_bytes(reading.page_bytes)
        with self._changed:
            self._read += num_bytes
            if num_bytes:
                took = (self._clock() - began) / num_bytes
                self._rate = took if self._rate is None else self._rate + _WEIGHT * (took - self._rate)
        reading.finish(rows[:good])

    def _read_file(self, page: PageId, target: memoryview) -> bool:
        """False: it is not there, or no longer what was written, and then the writer removes it."""
        try:
            found = files.read_into(self._directory, page, target)
        except OSError as error:
            with self._changed:
                self._failed += 1
                self._lose(page)
                self._say(f"reading from {self._path} failed: {_reason(error)}")
            return False
        if found is Found.GOOD:
            return True
        with self._changed:
            self._corrupt += found is Found.CORRUPT
            self._lose(page)
        return False

    def _lose(self, page: PageId) -> None:
        """It was not read. One that is queued has been put again meanwhile, and its file will be another."""
        if page not in self._data and self._index.drop(page):
            self._forget(page)
            self._changed.notify_all()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
