"""A page store in memory that fails as disks do, by a seed: full queues, late, short and damaged readings, a small cap.

What it hands out is never wrong: a store verifies. `patience` of everything is in calls, not in seconds.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from sojourn.core.step import MODEL_POOLS, Pool
from sojourn.core.tier import Names, PageRows, StoreStatistics


@dataclass
class Odds:
    """Chances of each misfortune, per page or per reading."""

    drop: float = 0.0
    damage: float = 0.0
    calls_max: int = 0  # until a reading is done
    pages_max: int = 10_000


class FakeReading:
    def __init__(self, rows: PageRows, calls: int) -> None:
        self._rows = rows
        self.calls = calls

    def is_done(self) -> bool:
        self.calls -= 1
        return self.calls < 0

    def rows(self) -> PageRows:
        assert self.calls < 0, "taken before it was done"
        return self._rows


@dataclass
class FakeStore:
    """Implements `core.tier.PageStore`."""

    seed: int = 0
    odds: Odds = field(default_factory=Odds)
    seconds_per_byte: float | None = None
    room: int = 1 << 40  # in the queue, until somebody waits for it

    def __post_init__(self) -> None:
        self._rng = random.Random(f"store {self.seed}")
        self.pages: OrderedDict[tuple[Pool, bytes], bytes] = OrderedDict()
        self.puts = self.drops = self.reads = self.damages = self.evictions = self.waits = self.clears = self.asked = 0

    @classmethod
    def drawn(cls, seed: int) -> "FakeStore":
        """A store with misfortunes of its own."""
        rng = random.Random(f"odds {seed}")
        odds = Odds(
            drop=rng.choice([0, 0, 0.2]),
            damage=rng.choice([0, 0, 0.1]),
            calls_max=rng.choice([0, 1, 4]),
            pages_max=rng.choice([10_000, 40, 10]),
        )
        return cls(seed, odds)

    def has(self, pool: Pool, name: bytes) -> bool:
        self.asked += 1
        return (pool, name) in self.pages

    def touch(self, pool: Pool, names: Names) -> None:
        for name in names:
            if (pool, name) in self.pages:
                self.pages.move_to_end((pool, name))

    def put(self, pool: Pool, name: bytes, data: bytes, wait_s: float = 0.0) -> bool:
        self.puts += 1
        known = self.pages.get((pool, name))
        if known is None and len(data) > self.room and not wait_s:
            self.drops += 1
            return False
        self.room -= 0 if known is not None or wait_s else len(data)
        if self._rng.random() < self.odds.drop:
            self.drops += 1
            return False
        assert known is None or known == data, "one name, two contents"
        self.pages[pool, name] = data
        while len(self.pages) > self.odds.pages_max:
            self.pages.popitem(last=False)
            self.evictions += 1
        return True

    def put_ahead(self, pool: Pool, name: bytes, data: bytes) -> bool:
        """No page goes for it; those that have gone ahead go as others do."""
        return len(self.pages) < self.odds.pages_max and self.put(pool, name, data)

    def touch_ahead(self, pool: Pool, names: Names) -> None:
        self.touch(pool, names)

    @property
    def room_ahead(self) -> int:
        return 1 << 40

    def num_unwritten(self) -> int:
        return 0

    def is_written(self, pool: Pool, name: bytes) -> bool:
        return (pool, name) in self.pages

    def read(self, pool: Pool, names: Names, page_bytes: int) -> FakeReading:
        self.reads += 1
        rows = []
        for name in names:
            data = self.pages.get((pool, name))
            if data is not None and self._rng.random() < self.odds.damage:
                self.damages += 1
                del self.pages[pool, name]
                data = None
            if data is None:
                break
            assert len(data) == page_bytes
            rows.append(np.frombuffer(data, dtype=np.uint8))
        stacked = np.array(rows, dtype=np.uint8).reshape(len(rows), page_bytes)
        return FakeReading(stacked, self._rng.randint(0, self.odds.calls_max))

    def clear(self) -> None:
        self.clears += 1
        self.pages.clear()

    def wait(self, seconds: float) -> None:
        self.waits += 1

    def statistics(self) -> StoreStatistics:
        counts = tuple(sum(page[0] is pool for page in self.pages) for pool in MODEL_POOLS)
        num_bytes = sum(len(data) for data in self.pages.values())
        return StoreStatistics(
            is_open=True, is_writable=True, num_pages=counts, num_bytes=num_bytes, bytes_max=1 << 40,
            written_bytes=0, read_bytes=0, evicted=(0, 0), dropped=self.drops, corrupt=self.damages, failed=0, swept=0,
            seconds_per_byte=self.seconds_per_byte,
        )  # fmt: skip
