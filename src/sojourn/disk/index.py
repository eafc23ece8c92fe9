"""Which pages are kept, in order of use, under a cap in bytes. Knows sizes and counts; no files and no threads.

Those put ahead of any use go before all others, the oldest first; once used they are as the others.
"""

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
        self.ahead_bytes = 0
        self._sizes: OrderedDict[PageId, int] = OrderedDict()
        self._ahead: OrderedDict[PageId, int] = OrderedDict()
        self._by_pool: Counter[Pool] = Counter()

    def __contains__(self, page: PageId) -> bool:
        return page in self._sizes or page in self._ahead

    def __len__(self) -> int:
        return len(self._sizes) + len(self._ahead)

    def is_ahead(self, page: PageId) -> bool:
        return page in self._ahead

    @property
    def room_ahead(self) -> int:
        """Bytes that pages put ahead may have."""
        return self.bytes_max - (self.num_bytes - self.ahead_bytes)

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

    def add_ahead(self, page: PageId, size: int) -> int:
        """As `add`, for a page that nobody has used. It must have room there."""
        self._insert(page, size)
        self._ahead[page] = self._sizes.pop(page)
        self.ahead_bytes += size
        return self._next()

    def touch(self, page: PageId) -> int | None:
        """Used now; returns its count of uses. None: it is not kept."""
        if page in self._ahead:
            self._insert(page, self._ahead[page])
        elif page in self._sizes:
            self._sizes.move_to_end(page)
        else:
            return None
        return self._next()

    def touch_ahead(self, page: PageId) -> int | None:
        """It is the last to go of those put ahead; None: it is none of them."""
        if page not in self._ahead:
            return None
        self._ahead.move_to_end(page)
        return self._next()

    def drop(self, page: PageId) -> bool:
        """False: it was not kept."""
        if page in self._ahead:
            size = self._ahead.pop(page)
            self.ahead_bytes -= size
        elif page in self._sizes:
            size = self._sizes.pop(page)
        else:
            return False
        self.num_bytes -= size
        self._by_pool[page[0]] -= 1
        return True

    def overflow(self) -> list[PageId]:
        """Take out what was put ahead, then the least recently used, until the rest is under the cap; returns them."""
        gone = []
        while self.num_bytes > self.bytes_max:
            page = next(iter(self._ahead or self._sizes))
            self.drop(page)
            gone.append(page)
        return gone

    def take_all(self) -> list[PageId]:
        """Forget everything; returns what was kept."""
        gone = [*self._ahead, *self._sizes]
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
