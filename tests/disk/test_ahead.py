"""Pages put ahead: they take no room from those that were used, go first, and are as good as any once they are used."""

from sojourn.core.step import Pool
from sojourn.disk import files
from tests.disk.bench import GUARD_S, PAGE, Bench, fill, name, page, read


def test_a_page_put_ahead_is_in_a_file_and_comes_back(bench: Bench) -> None:
    store = bench.open()
    assert store.put_ahead(Pool.FULL, name(1), page(1))
    assert store.has(Pool.FULL, name(1))
    assert store.drain(GUARD_S)
    assert store.is_written(Pool.FULL, name(1))
    assert (store.num_unwritten(), store.statistics().unwritten) == (0, 0)
    assert store.statistics().ahead_bytes == store.statistics().written_bytes == files.file_bytes(PAGE)
    store.close()
    assert read(bench.open(), 1) == [page(1)]


def test_it_takes_no_room_from_pages_that_were_used(bench: Bench) -> None:
    store = bench.open(pages=4)
    fill(store, 1, 2, 3)
    assert store.room_ahead == files.file_bytes(PAGE)
    assert store.put_ahead(Pool.FULL, name(4), page(4))
    assert store.put_ahead(Pool.FULL, name(5), page(5)), "another one that was put ahead goes"
    assert not store.has(Pool.FULL, name(4))
    fill(store, 6)
    assert [number for number in range(1, 7) if store.has(Pool.FULL, name(number))] == [1, 2, 3, 6]
    assert store.room_ahead == 0
    assert not store.put_ahead(Pool.FULL, name(7), page(7))
    assert store.statistics().dropped == 0, "it is still where it was"
    assert store.drain(GUARD_S)
    assert len(bench.files()) == 4


def test_once_it_is_used_it_goes_as_others_do(bench: Bench) -> None:
    store = bench.open(pages=3)
    for number in (1, 2, 3):
        assert store.put_ahead(Pool.FULL, name(number), page(number))
    assert read(store, 1) == [page(1)]
    assert store.put(Pool.FULL, name(2), page(2)), "given up: it is known"
    fill(store, 4)
    assert [number for number in range(1, 5) if store.has(Pool.FULL, name(number))] == [1, 2, 4]
    fill(store, 5)
    assert [number for number in range(1, 6) if store.has(Pool.FULL, name(number))] == [2, 4, 5]


def test_what_nobody_used_since_the_folder_was_opened_gives_way(bench: Bench) -> None:
    fill(first := bench.open(pages=3), 1, 2, 3)
    first.close()
    store = bench.open(pages=3)
    assert store.room_ahead == 3 * files.file_bytes(PAGE)
    assert read(store, 2) == [page(2)]
    assert store.room_ahead == 2 * files.file_bytes(PAGE)
    store.touch_ahead(Pool.FULL, (name(1),))  # somebody has it who is idle
    kept = []
    for number in (4, 5, 6):
        assert store.put_ahead(Pool.FULL, name(number), page(number))
        kept.append([number for number in range(1, 7) if store.has(Pool.FULL, name(number))])
    assert kept == [[1, 2, 4], [2, 4, 5], [2, 5, 6]]


def test_of_those_put_ahead_the_one_touched_last_goes_last(bench: Bench) -> None:
    store = bench.open(pages=3)
    fill(store, 9)
    for number in (1, 2):
        assert store.put_ahead(Pool.FULL, name(number), page(number))
    store.touch_ahead(Pool.FULL, (name(1), name(9), name(7)))
    assert store.put_ahead(Pool.FULL, name(3), page(3))
    assert [number for number in (1, 2, 3, 9) if store.has(Pool.FULL, name(number))] == [1, 3, 9]
    assert store.drain(GUARD_S)
    store.close()
    again = bench.open(pages=3)
    fill(again, 8)
    assert not again.has(Pool.FULL, name(9)), "after a restart nobody else has those either: the oldest goes"
    assert read(again, 1, 3) == [page(1), page(3)]


def test_what_is_damaged_or_forgotten_is_forgotten_whichever_it_is(bench: Bench) -> None:
    store = bench.open(pages=3)
    assert store.put_ahead(Pool.FULL, name(1), page(1))
    assert store.put_ahead(Pool.FULL, name(2), page(2))
    assert store.drain(GUARD_S)
    path = bench.path / files.name_of((Pool.FULL, name(1)))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert read(store, 1) == []
    assert (store.statistics().corrupt, store.room_ahead) == (1, 3 * files.file_bytes(PAGE))
    store.clear()
    assert (store.statistics().num_bytes, store.statistics().num_pages) == (0, (0, 0))
    assert store.drain(GUARD_S)
    assert bench.files() == []
