"""Which idle session's time is up next. Knows names and moments, no sessions.

A heap of deadlines; one that was cleared or replaced stays in it until it comes up, or until stale ones are the majority.
"""

import heapq

_STALE_ALLOWED = 64


class Deadlines:
    """One deadline a name. Moments are seconds of one clock."""

    def __init__(self) -> None:
        self._deadline: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, name: str, at: float) -> None:
        self._deadline[name] = at
        heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 2 * len(self._deadline) + _STALE_ALLOWED:
            self._heap = [(moment, one) for one, moment in self._deadline.items()]
            heapq.heapify(self._heap)

    def clear(self, name: str) -> None:
        """No deadline for this name; fine if it has none."""
        self._deadline.pop(name, None)

    def first(self) -> float | None:
        """The earliest deadline; None if there is none."""
        while self._heap and self._deadline.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> list[str]:
        """The names whose deadline has come, earliest first; they have none any more."""
        due: list[str] = []
        while (at := self.first()) is not None and at <= now:
            name = heapq.heappop(self._heap)[1]
            del self._deadline[name]
            due.append(name)
        return due
