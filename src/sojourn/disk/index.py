"""Which pages are kept, in order of use, under a cap in bytes. Knows sizes and counts; no files and no threads."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from sojourn.core.step import MODEL_POOLS, Pool
from sojourn.disk.files import Entry, PageId


class Index:
    """Least recently used first. `used` counts uses: what is used now gets the next number."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.num_bytes = 0
        self.used = 0
        self._sizes: OrderedDict[PageId, int] = OrderedDict()
        self._by_pool: Counter[Pool] = Counter()

    def __contains__(self, page: PageId) -> bool:
        return page in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def num_pages(self) -> tuple[int, ...]:
        return tuple(self._by_pool[pool] for pool in MODEL_POOLS)

    def fill(self, entries: Iterable[Entry]) -> None:
        """What a folder had, oldest first."""
        for entry in entries:
            self._insert(entry.page, entry.size)
            self.used = max(self.used, entry.used)

    def add(self, page: PageId, size: int) -> int:
        """Kept and used now; returns its count of uses. What no longer fits is the caller's to take out by `overflow`."""
        self._insert(page, size)
        return self._next()

    def touch(self, page: PageId) -> int | None:
        """Used now; returns its count of uses. None: it is not kept."""
        if page not in self._sizes:
            return None
        self._sizes.move_to_end(page)
        return self._next()

    def drop(self, page: PageId) -> bool:
        """False: it was not kept."""
        size = self._sizes.pop(page, None)
        if size is None:
            return False
        self.num_bytes -= size
        self._by_pool[page[0]] -= 1
        return True

    def overflow(self) -> list[PageId]:
        """Take out the least recently used until the rest is under the cap; returns them."""
        gone = []
        while self.num_bytes > self.bytes_max:
            page = next(iter(self._sizes))
            self.drop(page)
            gone.append(page)
        return gone

    def take_all(self) -> list[PageId]:
        """Forget everything; returns what was kept."""
        gone = list(self._sizes)
        for page in gone:
            self.drop(page)
        return gone

    def _insert(self, page: PageId, size: int) -> None:
        self.drop(page)
        self._sizes[page] = size
        self.num_bytes += size
        self._by_pool[page[0]] += 1

    def _next(self) -> int:
        self.used += 1
        return self.used
