"""The page file store: what is put comes back, across a restart, under a cap; and whatever a disk does, the engine goes on."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sojourn.core.step import Pool
from sojourn.disk import files
from sojourn.disk.files import Found
from sojourn.disk.index import Index
from sojourn.disk.store import _PROBE, DiskStore
from tests.disk.bench import GUARD_S, PAGE, Bench, fill, name, page, read


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


def test_a_page_larger_than_the_cap_is_refused(bench: Bench) -> None:
    store = bench.open(pages=1)
    assert not store.put(Pool.FULL, name(1), bytes(2 * PAGE))
    assert (store.statistics().refused, store.statistics().dropped) == (1, 0)


def test_the_order_of_use_is_kept_for_what_is_used_before_it_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    writes, goes_on = threading.Event(), threading.Event()
    write_all = files.write_all

    def held(directory: int, pages: list[tuple[files.PageId, bytes, int]]) -> None:
        writes.set()
        assert goes_on.wait(GUARD_S)
        write_all(directory, pages)

    monkeypatch.setattr(files, "write_all", held)
    assert store.put(Pool.FULL, name(1), page(1))
    assert writes.wait(GUARD_S)
    assert store.put(Pool.FULL, name(2), page(2))
    assert store.put(Pool.FULL, name(3), page(3))
    store.touch(Pool.FULL, (name(2), name(1)))  # the one is queued, the other is being written
    goes_on.set()
    assert store.drain(GUARD_S)
    store.close()
    again = bench.open(pages=2)
    assert [again.has(Pool.FULL, name(n)) for n in (1, 2, 3)] == [True, True, False]


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
    goes_on, write_all, wait_for = threading.Event(), files.write_all, store._changed.wait_for

    def held(directory: int, pages: list[tuple[files.PageId, bytes, int]]) -> None:
        assert goes_on.wait(GUARD_S)
        write_all(directory, pages)

    def watched(predicate: Callable[[], object], timeout: float | None = None) -> object:
        if threading.current_thread() is threading.main_thread():
            goes_on.set()
        return wait_for(predicate, timeout)

    monkeypatch.setattr(files, "write_all", held)
    monkeypatch.setattr(store._changed, "wait_for", watched)
    assert store.room == 2 * PAGE
    assert store.put(Pool.FULL, name(1), page(1))
    assert store.put(Pool.FULL, name(2), page(2))
    assert store.room == 0
    assert not store.put(Pool.FULL, name(3), page(3))
    assert (store.statistics().dropped, goes_on.is_set()) == (1, False)
    assert store.put(Pool.FULL, name(3), page(3), wait_s=GUARD_S)
    assert goes_on.is_set(), "it was waited for"
    assert store.drain(GUARD_S)
    assert len(read(store, 1, 2, 3)) == 3


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


def test_what_is_forgotten_at_the_end_is_removed_at_the_end(bench: Bench) -> None:
    store = bench.open()
    fill(store, 1, 2)
    with store._changed:
        store.clear()
        store._is_closing = True
    store.close()
    assert bench.files() == []


def test_reading_is_measured_at_the_start_and_with_every_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    read_into, per_byte = files.read_into, 1e-6

    def timed(directory: int, which: files.PageId, target: memoryview) -> Found:
        bench.clock.now += per_byte * (len(target) if which == _PROBE else files.file_bytes(len(target)))
        return read_into(directory, which, target)

    monkeypatch.setattr(files, "read_into", timed)
    store = bench.open()
    assert store.statistics().seconds_per_byte == pytest.approx(1e-6)
    per_byte = 3e-6
    fill(store, 1, 2)
    read(store, 2, 1)
    assert store.statistics().seconds_per_byte == pytest.approx(1.4e-6)
    read(store, 2)
    assert store.statistics().seconds_per_byte == pytest.approx(1.72e-6)


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
