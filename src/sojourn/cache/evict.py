"""What is given up first: what is worth least, at O(log n) a victim. A heap whose stale entries are skipped.

The worth of cached pages is GreedyDual-Size-Frequency's:

    worth = floor + uses * cost of computing one of them again

It is set when they are used, and compared with that of others until then. `floor` is the worth of the last victim, so
whatever is used now starts above everything that has been given up, and what is not used again is overtaken by it: that
is recency, without a clock. Uses count up to a bound, so that fame fades.

An entry of a queue is stale when its thing has another rank now, has left, or no longer qualifies. Knows nothing of
leases or pages: the owner of the queue says what qualifies.
"""

import heapq
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

USES_MAX = 4  # more often is not worth more
COST_MAX = 4.0
DEPTH_UNIT = 4096  # tokens before a page that make it twice as dear: attention then costs what the weights do
_SLACK = 64  # entries tolerated before the heap is rebuilt

Rank = tuple[float, ...]


class Appraiser:
    """Says what pages used now are worth. One per cache: worths of two are not comparable."""

    def __init__(self) -> None:
        self.floor = 0.0

    def worth(self, uses: int, depth: int) -> float:
        """Of pages used so often, `depth` tokens into their prompt."""
        return self.floor + min(uses, USES_MAX) * min(1 + depth / DEPTH_UNIT, COST_MAX)

    def gave_up(self, worth: float) -> None:
        """A victim was worth that much: whatever is used from now on is worth more."""
        self.floor = max(self.floor, worth)


class Ranked(Protocol):
    """What a queue orders, lowest rank first."""

    @property
    def rank(self) -> Rank: ...

    @property
    def is_attached(self) -> bool: ...


T = TypeVar("T", bound=Ranked)


class VictimQueue(Generic[T]):
    def __init__(self, qualifies: Callable[[T], bool]) -> None:
        self._qualifies = qualifies
        self._heap: list[tuple[Rank, int, T]] = []
        self._serial = 0
        self._rebuild_at = _SLACK

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, thing: T) -> None:
        """Queue `thing` at its rank, if it qualifies. Pushing twice does no harm."""
        if not self._qualifies(thing):
            return
        self._serial += 1
        heapq.heappush(self._heap, (thing.rank, self._serial, thing))
        if len(self._heap) >= self._rebuild_at:
            self._rebuild()

    def pop(self) -> T | None:
        """The lowest in rank of those that qualify; it is no longer queued."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_fresh(entry):
                return entry[2]
        return None

    def _is_fresh(self, entry: tuple[Rank, int, T]) -> bool:
        rank, _, thing = entry
        return thing.is_attached and thing.rank == rank and self._qualifies(thing)

    def _rebuild(self) -> None:
        """Drop stale and doubled entries; amortised over the pushes since the last time."""
        fresh = {id(entry[2]): entry for entry in self._heap if self._is_fresh(entry)}
        self._heap = list(fresh.values())
        heapq.heapify(self._heap)
        self._rebuild_at = 2 * len(self._heap) + _SLACK
