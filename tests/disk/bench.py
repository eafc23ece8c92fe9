"""A store of page files to try things on, and pages that are told apart by a number."""

from pathlib import Path

from sojourn.core.step import Pool
from sojourn.disk import files
from sojourn.disk.store import DiskStore
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
