"""How fast something drains, measured, and so when it is worth coming back. Knows no requests.

Time counts only while something is there to end: an idle night does not make the next answer slow.

    Retry-After = seconds per ending, lately  x  (turned away since the last ending + 1)        1 to 60

so callers that are turned away together are told different times, and each finds a place.
"""

import math
from collections import deque

from sojourn.core.clock import Clock

ENDINGS = 16  # that count
RETRY_MAX_S = 60


class Pace:
    """Of one thing that has places: told when one is taken, when one is free again, and when somebody is turned away."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._live = 0
        self._since = clock()  # the last change
        self._busy_s = 0.0
        self._ends: deque[float] = deque([0.0], maxlen=ENDINGS + 1)  # in busy seconds; the first begins the measure
        self._turned_away = 0

    def began(self) -> None:
        self._count()
        self._live += 1

    def ended(self) -> None:
        self._count()
        self._live = max(0, self._live - 1)
        self._ends.append(self._busy_s)
        self._turned_away = 0

    def turn_away(self) -> int:
        """Somebody finds no place: the seconds after which there should be one for him."""
        self._count()
        self._turned_away += 1
        num_ends = max(1, len(self._ends) - 1)  # before the first, what has passed is the least that one takes
        wait_s = self._turned_away * (self._busy_s - self._ends[0]) / num_ends
        return max(1, min(math.ceil(wait_s), RETRY_MAX_S))

    def _count(self) -> None:
        now = self._clock()
        if self._live:
            self._busy_s += now - self._since
        self._since = now
