"""Least recently used first, at O(log n) a victim: a heap whose stale entries are skipped.

An entry is stale when its node has been used since, has left the tree, or no longer qualifies. Knows nothing of leases
or pages: the owner of the queue says what qualifies.
"""

import heapq
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

_SLACK = 64  # entries tolerated before the heap is rebuilt


class Aged(Protocol):
    """What a queue orders: `last_used` grows with every use."""

    last_used: int
    is_attached: bool


T = TypeVar("T", bound=Aged)


class NodeQueue(Generic[T]):
    def __init__(self, qualifies: Callable[[T], bool]) -> None:
        self._qualifies = qualifies
        self._heap: list[tuple[int, int, T]] = []
        self._serial = 0
        self._rebuild_at = _SLACK

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: T) -> None:
        """Queue `node` at its age, if it qualifies. Pushing twice does no harm."""
        if not self._qualifies(node):
            return
        self._serial += 1
        heapq.heappush(self._heap, (node.last_used, self._serial, node))
        if len(self._heap) >= self._rebuild_at:
            self._rebuild()

    def pop(self) -> T | None:
        """The least recently used node that qualifies; it is no longer queued."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._is_fresh(entry):
                return entry[2]
        return None

    def _is_fresh(self, entry: tuple[int, int, T]) -> bool:
        last_used, _, node = entry
        return node.is_attached and node.last_used == last_used and self._qualifies(node)

    def _rebuild(self) -> None:
        """Drop stale and doubled entries; amortised over the pushes since the last time."""
        fresh = {id(entry[2]): entry for entry in self._heap if self._is_fresh(entry)}
        self._heap = list(fresh.values())
        heapq.heapify(self._heap)
        self._rebuild_at = 2 * len(self._heap) + _SLACK
