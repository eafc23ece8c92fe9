"""Whatever the system refuses, or keeps waiting, is said once, and account and folder stay one."""

import errno
import os
import threading

import pytest

from sojourn.core.step import Pool
from sojourn.disk import files
from sojourn.disk.files import Found
from sojourn.disk.store import _PROBE, RETRY_S
from tests.disk.bench import GUARD_S, PAGE, Bench, fill, name, page, read
from tests.support.world import ManualClock


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
    assert (store.statistics().refused, store.statistics().dropped, store.room) == (1, 0, 0)
    assert read(store, 1) == [page(1)]
    assert len(bench.warnings) == 1
    assert "No space left on device" in bench.warnings[0]
    assert len(bench.files()) == 1  # nothing half written
    bench.clock.now += RETRY_S
    assert store.statistics().is_writable, "it is tried again"
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


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_from_the_start_is_read_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    fill(first := bench.open(), 1)
    first.close()
    write = files._write
    is_full = True

    def refuse(descriptor: int, data: bytes) -> None:
        if is_full:
            raise OSError(reason, "Full")
        write(descriptor, data)

    monkeypatch.setattr(files, "_write", refuse)
    store = bench.open()
    statistics = store.statistics()
    assert (statistics.is_open, statistics.is_writable, statistics.seconds_per_byte) == (True, False, None)
    assert not store.put(Pool.FULL, name(2), page(2))
    assert read(store, 1) == [page(1)]
    assert store.statistics().seconds_per_byte is not None, "the first read says it"
    assert len(bench.warnings) == 1
    is_full = False
    bench.clock.now += RETRY_S
    fill(store, 2)
    assert read(store, 2) == [page(2)]
    assert len(bench.files()) == 2


def test_a_store_that_is_not_open_has_no_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(first := bench.open(), 1)
    first.close()

    def refuse(descriptor: int, data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "_write", refuse)
    store = bench.open()
    statistics = store.statistics()
    assert (statistics.is_open, statistics.num_pages, statistics.num_bytes) == (False, (0, 0), 0)
    assert not store.has(Pool.FULL, name(1))


def test_what_a_process_that_was_killed_at_its_start_had_tried_is_no_page(bench: Bench) -> None:
    fill(first := bench.open(), 1)
    first.close()
    directory = os.open(bench.path, os.O_RDONLY)
    files.write_all(directory, [(_PROBE, bytes(100), 0)])
    os.close(directory)
    assert bench.open().statistics().num_pages == (1, 0)
    assert bench.files() == [files.name_of((Pool.FULL, name(1)))]


@pytest.mark.parametrize(("mode", "warnings"), [(0o700, 0), (0o755, 0), (0o770, 1), (0o777, 1)])
def test_a_folder_that_others_may_write_into_is_said(bench: Bench, mode: int, warnings: int) -> None:
    bench.path.mkdir()
    bench.path.chmod(mode)
    store = bench.open()
    fill(store, 1)
    assert len(bench.warnings) == warnings
    assert not warnings or "others may write" in bench.warnings[0]
    assert (bench.path / files.name_of((Pool.FULL, name(1)))).stat().st_mode & 0o777 == 0o600


def test_a_path_that_is_no_folder_is_said(bench: Bench) -> None:
    bench.path.write_text("a file")
    assert not bench.open().is_open
    assert len(bench.warnings) == 1


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
    assert (store.statistics().num_pages, bench.files()) == ((0, 0), [])


def test_a_page_that_is_not_read_is_kept_if_it_was_put_again_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    fill(store, 1)
    goes_on, write_all = threading.Event(), files.write_all

    def held(directory: int, pages: list[tuple[files.PageId, bytes, int]]) -> None:
        assert goes_on.wait(GUARD_S)
        write_all(directory, pages)

    def refuse(*arguments: object) -> Found:
        store.clear()
        assert store.put(Pool.FULL, name(1), page(1))
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "write_all", held)
    with monkeypatch.context() as patch:
        patch.setattr(files, "read_into", refuse)
        reading = store.read(Pool.FULL, (name(1),), PAGE)
        while not reading.is_done():
            store.wait(GUARD_S)
    assert store.has(Pool.FULL, name(1))
    goes_on.set()
    assert read(store, 1) == [page(1)]
    assert (store.statistics().num_pages, len(bench.files())) == ((1, 0), 1)


def test_files_that_could_not_be_removed_are_removed_later_and_nothing_is_added_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open(pages=3)
    fill(store, 1, 2, 3)
    remove = files.remove
    refused: list[files.PageId] = []

    def refuse(directory: int, which: files.PageId) -> None:
        refused.append(which)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "remove", refuse)
    assert store.put(Pool.FULL, name(4), page(4))
    assert store.drain(GUARD_S)
    assert (refused, len(bench.files())) == ([(Pool.FULL, name(1))], 3)
    assert not store.put(Pool.FULL, name(5), page(5))
    store.touch(Pool.FULL, (name(2),))
    assert store.drain(GUARD_S)
    assert len(refused) == 1, "it is not tried all the time"
    monkeypatch.setattr(files, "remove", remove)
    bench.clock.now += RETRY_S
    fill(store, 5)
    assert bench.files() == sorted(files.name_of((Pool.FULL, name(n))) for n in (2, 3, 5))
    assert store.statistics().num_pages == (3, 0)


def test_nobody_is_remembered_who_no_longer_waits_for_a_disk_that_hangs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    fill(store, 1)
    hangs, goes_on, read_into = threading.Event(), threading.Event(), files.read_into

    def hang(directory: int, which: files.PageId, target: memoryview) -> Found:
        hangs.set()
        assert goes_on.wait(GUARD_S)
        return read_into(directory, which, target)

    monkeypatch.setattr(files, "read_into", hang)
    first = store.read(Pool.FULL, (name(1),), PAGE)
    assert hangs.wait(GUARD_S)
    held = store.read(Pool.FULL, (name(1),), PAGE)
    for _ in range(50):
        store.read(Pool.FULL, (name(1),), PAGE)
    assert len(store._to_read) <= 2
    goes_on.set()
    assert store.drain(GUARD_S)
    assert [len(reading.rows()) for reading in (first, held)] == [1, 1]


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
