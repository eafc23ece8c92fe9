"""The law that work gets done: no request is alive for long while nothing runs and pages could be had.

Told by the loop when something ran and when nothing could be planned although requests are alive. What it raises nobody
here catches: the engine reports and stops, and whoever watches over it starts another.
"""

from collections.abc import Iterable

from sojourn.cache.protocol import PrefixCache
from sojourn.core.errors import law
from sojourn.scheduler.request import Request

WEDGED_AFTER_S = 20.0  # less than a front waits for steps before it says that the engine is not alive


class Watchdog:
    """Costs nothing while steps run."""

    def __init__(self, cache: PrefixCache, after_s: float = WEDGED_AFTER_S) -> None:
        self._cache = cache
        self._after_s = after_s
        self._ran_at = 0.0

    def ran(self, now: float) -> None:
        """A step was launched, or settled."""
        self._ran_at = now

    def nothing_ran(self, now: float, alive: Iterable[Request]) -> None:
        """No step is in flight and none could be planned: the oldest request may not have waited too long for that."""
        oldest = next(iter(alive), None)
        if oldest is None:
            return
        waited = now - max(self._ran_at, oldest.times.queued_at)
        if waited <= self._after_s:
            return
        pages = sum(pool.free + pool.evictable for pool in self._cache.statistics())
        law(
            pages == 0,
            "%s waits, nothing has run for %.1f s, and %d pages could be had",
            oldest.request_id,
            waited,
            pages,
        )
