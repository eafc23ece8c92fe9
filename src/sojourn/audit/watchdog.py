"""The law that work gets done: no request is alive for long while nothing runs and pages could be had, and none waits, with
a place free, for pages that it could have, however much others run.

Told by the loop after each plan who waits, and when nothing could be planned although requests are alive. What it raises nobody
here catches: the engine reports and stops, and whoever watches over it starts another.
"""

from collections.abc import Iterable

from sojourn.cache.protocol import PrefixCache
from sojourn.core.errors import law
from sojourn.core.ids import StepId
from sojourn.core.step import Pool
from sojourn.scheduler.admission import RETRY_STEPS, Blocked
from sojourn.scheduler.request import Request

WEDGED_AFTER_S = 20.0  # less than a front waits for steps before it says that the engine is not alive

LOOK_EVERY = 8  # refusals of one request between two looks at whether they are right
COVERED_MAX = (
    64  # refusals in a row with the pages there: some may wait behind the fence, and be taken by those that run
)
UNTRIED_STEPS = 8 * RETRY_STEPS


class Watchdog:
    """Costs next to nothing while steps run and nobody waits for pages."""

    def __init__(self, cache: PrefixCache, after_s: float = WEDGED_AFTER_S) -> None:
        self._blocked: Request | None = None
        self._refusals = 0  # of that one, told so far
        self._covered = 0  # of them in a row, now
        self._tried_at = StepId(0)
        self._seen_at = StepId(0)
        self._untried = 0  # steps since, in which somebody could have been tried
        self._cache = cache
        self._after_s = after_s
        self._stuck_at: StepId | None = None  # the step that could not be planned, though requests are alive
        self._stuck_since = 0.0

    def goes_on(self) -> None:
        """Nothing runs, and something is done about it."""
        self._stuck_at = None

    def waits(self, step: StepId, blocked: Blocked | None) -> None:
        """After a step was planned: who is first in line, with a place free, and was refused for want of pages.

        A refusal is looked at in a while: if there were pages on the very terms it was refused on, every one that follows is.
        """
        if blocked is None or blocked.request is not self._blocked:
            self._blocked = None if blocked is None else blocked.request
            self._refusals = self._covered = self._untried = 0
            if blocked is None:
                return
        request, refusal = blocked.request, blocked.refusal
        if self._refusals and refusal.tried_at == self._tried_at:
            self._untried += blocked.is_open and step != self._seen_at
            self._seen_at = step
            law(
                self._untried <= UNTRIED_STEPS,
                "%s waits and was not tried in %d steps",
                request.request_id,
                self._untried,
            )
            return
        self._tried_at, self._untried = refusal.tried_at, 0
        self._refusals += 1
        if not self._covered and self._refusals % LOOK_EVERY:
            return
        has_pages = self._cache.covers(request.cached, refusal.length, refusal.terms)
        self._covered = self._covered + 1 if has_pages else 0
        law(
            self._covered <= COVERED_MAX,
            "%s waits for pages up to %d tokens, which could be had, and was refused %d times",
            request.request_id,
            refusal.length,
            self._refusals,
        )

    def nothing_ran(self, step: StepId, now: float, alive: Iterable[Request]) -> None:
        """No step is in flight and `step` could not be planned: that may not go on for long while requests are alive.

        Counted from the first try, for one that retracts plans nothing and the next one does.
        """
        oldest = next(iter(alive), None)
        if oldest is None:
            self._stuck_at = None
            return
        if self._stuck_at != step:
            self._stuck_at, self._stuck_since = step, now
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
