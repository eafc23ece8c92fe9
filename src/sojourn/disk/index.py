"""Which pages are kept, in order of use, under a cap in bytes. Knows sizes and counts; no files and no threads.

    found     when the folder was opened, and not used since: the first to go, least recently used first
    ahead     put before any use; then the oldest of these
    used      the last to go, least recently used first

What is put ahead has the room that is not used, so only what was found and other pages put ahead go for it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from sojourn.core.step import MODEL_POOLS, Pool
from sojourn.disk.files import Entry, PageId


class Index:
    """`used` counts uses: what is used now gets the next number."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.num_bytes = 0
        self.used = 0
        self._found: OrderedDict[PageId, int] = OrderedDict()
        self._ahead: OrderedDict[PageId, int] = OrderedDict()
        self._used: OrderedDict[PageId, int] = OrderedDict()
        self._classes = self._found, self._ahead, self._used  # the first goes first
        self._used_bytes = 0
        self._by_pool: Counter[Pool] = Counter()

    def __contains__(self, page: PageId) -> bool:
        return page in self._used or page in self._ahead or page in self._found

    def __len__(self) -> int:
        return sum(map(len, self._classes))

    @property
    def num_pages(self) -> tuple[int, ...]:
        return tuple(self._by_pool[pool] for pool in MODEL_POOLS)

    @property
    def room_ahead(self) -> int:
        """Bytes that pages put ahead may have."""
        return self.bytes_max - self._used_bytes

    def is_ahead(self, page: PageId) -> bool:
        return page in self._ahead

    def fill(self, entries: Iterable[Entry]) -> None:
        """What a folder had, oldest first."""
        for entry in entries:
            self._insert(self._found, entry.page, entry.size)
            self.used = max(self.used, entry.used)

    def add(self, page: PageId, size: int) -> int:
        """Kept and used now; returns its count of uses. What no longer fits is the caller's to take out by `overflow`."""
        self._insert(self._used, page, size)
        return self._next()

    def add_ahead(self, page: PageId, size: int) -> int:
        """As `add`, for a page that nobody has used. It must have room there."""
        self._insert(self._ahead, page, size)
        return self._next()

    def touch(self, page: PageId) -> int | None:
        """Used now; returns its count of uses. None: it is not kept."""
        size = next((pages[page] for pages in self._classes if page in pages), None)
        if size is None:
            return None
        self._insert(self._used, page, size)
        return self._next()

    def touch_ahead(self, page: PageId) -> int | None:
        """It is the last to go of those put ahead; None: it was used. What was found is as good as put ahead."""
        size = self._found.get(page, self._ahead.get(page))
        if size is None:
            return None
        self._insert(self._ahead, page, size)
        return self._next()

    def drop(self, page: PageId) -> bool:
        """False: it was not kept."""
        for pages in self._classes:
            size = pages.pop(page, None)
            if size is not None:
                self.num_bytes -= size
                self._used_bytes -= size if pages is self._used else 0
                self._by_pool[page[0]] -= 1
                return True
        return False

    def overflow(self) -> list[PageId]:
        """Take out what goes first until the rest is under the cap; returns it."""
        gone = []
        while self.num_bytes > self.bytes_max:
            page = next(iter(self._found or self._ahead or self._used))
            self.drop(page)
            gone.append(page)
        return gone

    def take_all(self) -> list[PageId]:
        """Forget everything; returns what was kept."""
        gone = [page for pages in self._classes for page in pages]
        for page in gone:
            self.drop(page)
        return gone

    def _insert(self, pages: OrderedDict[PageId, int], page: PageId, size: int) -> None:
        """As the last to go of these."""
        self.drop(page)
        pages[page] = size
        self.num_bytes += size
        self._used_bytes += size if pages is self._used else 0
        self._by_pool[page[0]] += 1

    def _next(self) -> int:
        self.used += 1
        return self.used
