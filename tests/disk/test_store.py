"""The page file store: what is put comes back, across a restart, under a cap; and whatever a disk does, the engine goes on."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sojourn.core.step import Pool
from sojourn.disk import files
from sojourn.disk.files import Found
from sojourn.disk.index import Index
from sojourn.disk.store import RETRY_S, DiskStore
from tests.support.world import ManualClock

PAGE = 1000
GUARD_S = 60.0


class Bench:
    """A folder, and the stores opened on it one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.warnings: list[str] = []
        self.stores: list[DiskStore] = []

    def open(self, pages: int = 100, queue_bytes: int = 1 << 20, lock_wait_s: float = 0.0) -> DiskStore:
        cap = pages * files.file_bytes(PAGE)
        store = DiskStore(
            self.path, cap, self.clock, self.warnings.append, queue_bytes=queue_bytes, lock_wait_s=lock_wait_s
        )
        self.stores.append(store)
        return store

    def files(self) -> list[str]:
        return sorted(one.name for one in self.path.iterdir() if one.name != ".lock")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "kv")
    yield bench
    for store in bench.stores:
        store.close()


def name(number: int) -> bytes:
    return number.to_bytes(24, "big")


def page(number: int) -> bytes:
    return bytes([number % 251]) * PAGE


def read(store: DiskStore, *numbers: int, pool: Pool = Pool.FULL) -> list[bytes]:
    reading = store.read(pool, tuple(name(number) for number in numbers), PAGE)
    assert store.drain(GUARD_S)
    assert reading.is_done()
    return [row.tobytes() for row in reading.rows()]


def fill(store: DiskStore, *numbers: int) -> None:
    for number in numbers:
        assert store.put(Pool.FULL, name(number), page(number))
    assert store.drain(GUARD_S)


def test_pages_come_back_before_and_after_they_are_in_files_and_after_a_restart(bench: Bench) -> None:
    store = bench.open()
    assert store.put(Pool.FULL, name(1), page(1))
    assert store.has(Pool.FULL, name(1))
    assert not store.has(Pool.SWA, name(1))
    assert read(store, 1) == [page(1)]
    fill(store, 2, 3)
    assert read(store, 1, 2, 3) == [page(1), page(2), page(3)]
    store.close()
    again = bench.open()
    assert read(again, 3, 1) == [page(3), page(1)]
    assert again.statistics().num_pages == (3, 0)
    assert not bench.warnings


def test_a_reading_ends_at_the_first_page_that_is_missing(bench: Bench) -> None:
    store = bench.open()
    fill(store, 1, 3)
    assert read(store, 1, 2, 3) == [page(1)]
    assert store.statistics().corrupt == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "extend", "empty", "rename", "header"])
def test_a_damaged_file_is_not_read_and_is_deleted_and_counted(bench: Bench, damage: str) -> None:
    store = bench.open()
    fill(store, 1, 2)
    path = bench.path / files.name_of((Pool.FULL, name(2)))
    data = bytearray(path.read_bytes())
    match damage:
        case "flip":
            data[-7] ^= 1
        case "cut":
            data = data[:-1]
        case "extend":
            data += b"x"
        case "empty":
            data = bytearray()
        case "header":
            data[0] ^= 1
        case "rename":  # another page's file under this name
            data = bytearray((bench.path / files.name_of((Pool.FULL, name(1)))).read_bytes())
    path.write_bytes(data)
    assert read(store, 1, 2) == [page(1)]
    assert not path.exists()
    statistics = store.statistics()
    assert (statistics.corrupt, statistics.num_pages) == (1, (1, 0))
    assert not store.has(Pool.FULL, name(2))
    fill(store, 2)
    assert read(store, 2) == [page(2)]


def test_the_cap_holds_for_what_lies_in_the_folder_and_the_least_recently_used_goes(bench: Bench) -> None:
    store = bench.open(pages=3)
    fill(store, 1, 2, 3)
    store.touch(Pool.FULL, (name(1),))
    fill(store, 4)
    assert [store.has(Pool.FULL, name(n)) for n in (1, 2, 3, 4)] == [True, False, True, True]
    assert read(store, 3) == [page(3)]
    fill(store, 5)
    assert [store.has(Pool.FULL, name(n)) for n in (1, 3, 4, 5)] == [False, True, True, True]
    assert len(bench.files()) == 3
    assert store.statistics().evicted == (2, 0)
    store.close()
    smaller = bench.open(pages=2)  # the order of use is known to the next process, whatever its clock says
    assert [smaller.has(Pool.FULL, name(n)) for n in (3, 4, 5)] == [True, False, True]
    assert len(bench.files()) == 2


def test_of_a_chain_that_was_read_its_end_goes_first(bench: Bench) -> None:
    store = bench.open(pages=4)
    fill(store, 1, 2, 3)
    assert len(read(store, 1, 2, 3)) == 3
    fill(store, 4, 5)
    assert [store.has(Pool.FULL, name(n)) for n in (1, 2, 3)] == [True, True, False]


def test_a_page_larger_than_the_cap_is_dropped(bench: Bench) -> None:
    store = bench.open(pages=1)
    assert not store.put(Pool.FULL, name(1), bytes(2 * PAGE))
    assert store.statistics().dropped == 1


def test_what_a_dead_process_left_is_removed_and_foreign_files_are_left_alone(bench: Bench) -> None:
    store = bench.open()
    fill(store, 1)
    store.close()
    (bench.path / f"{files.TEMPORARY}{files.name_of((Pool.FULL, name(9)))}").write_bytes(b"half")
    (bench.path / "notes.txt").write_text("mine")
    again = bench.open()
    assert again.statistics().swept == 1
    assert bench.files() == sorted([files.name_of((Pool.FULL, name(1))), "notes.txt"])
    assert again.statistics().num_pages == (1, 0)


def test_clearing_forgets_everything_and_deletes_the_files(bench: Bench) -> None:
    store = bench.open()
    fill(store, 1, 2)
    store.clear()
    assert not store.has(Pool.FULL, name(1))
    assert store.drain(GUARD_S)
    assert bench.files() == []
    fill(store, 1)
    assert read(store, 1) == [page(1)]


def test_a_full_queue_drops_and_counts_or_waits_for_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open(queue_bytes=2 * PAGE)
    write_all = files.write_all
    with store._changed:  # the writer cannot take anything meanwhile
        assert store.put(Pool.FULL, name(1), page(1))
        assert store.put(Pool.FULL, name(2), page(2))
        assert not store.put(Pool.FULL, name(3), page(3))
    assert store.statistics().dropped == 1
    assert store.put(Pool.FULL, name(3), page(3), wait_s=GUARD_S)
    assert store.drain(GUARD_S)
    assert len(read(store, 1, 2, 3)) == 3
    assert files.write_all is write_all


def test_a_full_disk_is_said_once_and_what_is_there_is_still_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    fill(store, 1)
    write = files._write
    is_full = True

    def refuse(descriptor: int, data: bytes) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, data)

    monkeypatch.setattr(files, "_write", refuse)
    assert store.put(Pool.FULL, name(2), page(2))
    assert store.drain(GUARD_S)
    statistics = store.statistics()
    assert (statistics.failed, statistics.is_open, statistics.is_writable) == (1, True, False)
    assert not store.has(Pool.FULL, name(2))
    assert not store.put(Pool.FULL, name(3), page(3))
    assert read(store, 1) == [page(1)]
    assert len(bench.warnings) == 1
    assert "No space left on device" in bench.warnings[0]
    assert len(bench.files()) == 1  # nothing half written
    bench.clock.now += RETRY_S
    assert store.put(Pool.FULL, name(3), page(3))
    assert store.drain(GUARD_S)
    assert len(bench.warnings) == 1
    is_full = False
    bench.clock.now += RETRY_S
    fill(store, 4)
    assert read(store, 4) == [page(4)]
    assert store.statistics().is_writable


def test_a_folder_that_cannot_be_written_is_said_once_and_nothing_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "_write", refuse)
    store = bench.open()
    assert not store.is_open
    assert "Read-only file system" in bench.warnings[0]
    assert not store.put(Pool.FULL, name(1), page(1))
    assert read(store, 1) == []
    store.touch(Pool.FULL, (name(1),))
    store.clear()
    assert not store.statistics().is_writable
    assert len(bench.warnings) == 1


def test_a_path_that_is_no_folder_is_said(bench: Bench) -> None:
    bench.path.write_text("a file")
    assert not bench.open().is_open
    assert len(bench.warnings) == 1


def test_two_processes_do_not_share_a_folder(bench: Bench) -> None:
    first = bench.open()
    fill(first, 1)
    second = bench.open()
    assert not second.is_open
    assert "another process" in bench.warnings[0]
    assert read(first, 1) == [page(1)]
    first.close()
    assert read(bench.open(), 1) == [page(1)]


def test_a_folder_whose_process_is_about_to_end_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.open()
    fill(first, 1)
    tries: list[bool] = []
    take = DiskStore._take_lock

    def watched(store: DiskStore) -> bool:
        tries.append(take(store))
        if len(tries) == 3:
            first.close()
        return tries[-1]

    monkeypatch.setattr(DiskStore, "_take_lock", watched)
    second = bench.open(lock_wait_s=GUARD_S)
    assert tries == [False, False, False, True]
    assert read(second, 1) == [page(1)]
    assert not bench.warnings


def test_a_file_that_the_system_does_not_read_is_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    fill(store, 1)

    def refuse(*arguments: object) -> Found:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "read_into", refuse)
    assert read(store, 1) == []
    assert store.statistics().failed == 1
    assert not store.has(Pool.FULL, name(1))
    assert "Input/output error" in bench.warnings[0]


def test_reading_is_measured_from_the_start(bench: Bench) -> None:
    assert bench.open().statistics().seconds_per_byte is not None


def test_pages_without_bytes_are_kept_too(bench: Bench) -> None:
    store = bench.open()
    assert store.put(Pool.FULL, name(1), b"")
    assert store.drain(GUARD_S)
    reading = store.read(Pool.FULL, (name(1),), 0)
    assert store.drain(GUARD_S)
    assert reading.rows().shape == (1, 0)


def test_a_file_is_named_only_when_its_bytes_are_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `kill -9` at any call could leave: a name only with all its bytes, synced before."""
    directory = os.open(tmp_path, os.O_RDONLY)
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(descriptor: int) -> None:
        calls.append("folder" if descriptor == directory else "file")
        fsync(descriptor)

    def watched_rename(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        calls.append("rename")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    files.write_all(directory, [((Pool.FULL, name(n)), page(n), n) for n in (1, 2)])
    os.close(directory)
    assert calls == ["file", "file", "rename", "rename", "folder"]


def test_closing_does_not_wait_for_a_disk_that_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(directory: int, pages: object) -> None:
        hangs.set()
        assert goes_on.wait(GUARD_S)

    monkeypatch.setattr(files, "write_all", hang)
    assert store.put(Pool.FULL, name(1), page(1))
    assert hangs.wait(GUARD_S)
    store.close(hang_s=0.01)
    assert not store.is_open
    assert not store.put(Pool.FULL, name(2), page(2))
    goes_on.set()
    store.close()
    assert store.drain(GUARD_S)


class Held(threading.Thread):
    """A call to the disk has it, and whoever waits for it waits in vain."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def join(self, timeout: float | None = None) -> None:
        assert timeout is not None
        self._clock.now += timeout

    def is_alive(self) -> bool:
        return True


def test_threads_that_hang_are_waited_for_together_and_once(bench: Bench) -> None:
    store = bench.open()
    threads, began = store._threads, bench.clock.now
    store._threads = [Held(bench.clock), Held(bench.clock)]
    for _ in range(2):
        store.close(0.0, 2.0)
        assert bench.clock.now == began + 2.0
    store._threads = threads


def test_the_index_counts_what_it_holds() -> None:
    index = Index(bytes_max=100)
    pages = [(Pool(number % 2), name(number)) for number in range(6)]
    rng = np.random.default_rng(1)
    for _ in range(500):
        one = pages[int(rng.integers(len(pages)))]
        match int(rng.integers(3)):
            case 0:
                index.add(one, int(rng.integers(1, 40)))
            case 1:
                index.drop(one)
            case _:
                index.touch(one)
        index.overflow()
        assert index.num_bytes <= 100
        assert sum(index.num_pages) == len(index)
    assert len(index.take_all()) > 0
    assert (index.num_bytes, index.num_pages) == (0, (0, 0))
