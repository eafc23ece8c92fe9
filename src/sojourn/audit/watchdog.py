"""The law that work gets done: no request is alive for long while nothing runs and pages could be had.

Told by the loop when something ran and when nothing could be planned although requests are alive. What it raises nobody
here catches: the engine reports and stops, and whoever watches over it starts another.
"""

from collections.abc import Iterable

from sojourn.cache.protocol import PrefixCache
from sojourn.core.errors import law
from sojourn.core.step import Pool
from sojourn.scheduler.request import Request

WEDGED_AFTER_S = 20.0  # less than a front waits for steps before it says that the engine is not alive


class Watchdog:
    """Costs nothing while steps run."""

    def __init__(self, cache: PrefixCache, after_s: float = WEDGED_AFTER_S) -> None:
        self._cache = cache
        self._after_s = after_s
        self._stuck_since: float | None = None  # the first step since one ran that could plan nothing

    def ran(self) -> None:
        """A step was launched, or settled."""
        self._stuck_since = None

    def nothing_ran(self, now: float, alive: Iterable[Request]) -> None:
        """No step is in flight and none could be planned: that may not go on for long while requests are alive.

        Counted from the first such step, for a step that retracts plans nothing and the next one runs.
        """
        oldest = next(iter(alive), None)
        if oldest is None:
            self._stuck_since = None
            return
        if self._stuck_since is None:
            self._stuck_since = now
        waited = now - self._stuck_since
        if waited <= self._after_s:
            return
        pages = sum(pool.free + pool.evictable for pool in self._cache.statistics() if pool.pool is not Pool.DRAFT)
        law(
            pages == 0,
            "%s waits, nothing has run for %.1f s, and %d pages could be had",
            oldest.request_id,
            waited,
            pages,
        )
