"""When the books are checked: `--strict-mem-check`. What it raises nobody here catches: the engine reports and stops.

0   when the engine goes idle, and when pages moved while it was
1   and every few seconds while it is busy
2   and after every step; before it, that no page is written by two steps in flight

Before every step of any level: each work writes pages of its own, so within the step no page has two writers.
"""

from collections.abc import Sequence
from enum import IntEnum
from math import inf

from sojourn.audit.census import Census, census
from sojourn.audit.writes import WriteCheck
from sojourn.cache.protocol import PrefixCache
from sojourn.core.clock import Clock
from sojourn.core.ids import StepId
from sojourn.scheduler.flight import Launched

_EVERY_SECONDS = 5.0


class StrictMemCheck(IntEnum):
    IDLE = 0
    PERIODIC = 1
    EVERY_STEP = 2


class MemCheck:
    """The loop calls `before_step`, `after_step` and `when_idle`; the policy decides whether to look."""

    def __init__(
        self, cache: PrefixCache, level: StrictMemCheck, clock: Clock, *, every_s: float = _EVERY_SECONDS
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._is_strict = level is StrictMemCheck.EVERY_STEP
        self._pause_s = {StrictMemCheck.IDLE: inf, StrictMemCheck.PERIODIC: every_s, StrictMemCheck.EVERY_STEP: 0.0}[
            level
        ]
        self._due_at = clock() + self._pause_s
        self._last: Census | None = None
        self._checks = 0
        self._moves_seen = self._moves()
        self._writes = WriteCheck(cache.book, cache.draft_book)

    @property
    def checks(self) -> int:
        return self._checks

    @property
    def last(self) -> Census | None:
        """What was counted last."""
        return self._last

    def before_step(self, step: StepId, works: Sequence[Launched]) -> None:
        """The step is about to run: no page may have two writers."""
        if self._is_strict:
            self._writes.launch(step, works)
        else:
            self._writes.check_own(step, works)

    def after_step(self, step: StepId, *, is_idle: bool) -> None:
        """Take the census if it is due."""
        if self._is_strict:
            self._writes.retire(step)
        if is_idle or self._clock() >= self._due_at:
            self.check()

    def when_idle(self) -> None:
        """Nothing runs, waits or is in flight: take the census if a page has moved since the last one.

        What ends from outside, a rewind or a close moves pages without a step that settles.
        """
        if self._moves() != self._moves_seen:
            self.check()

    def check(self) -> Census:
        """Take the census now."""
        self._last = census(self._cache)
        self._checks += 1
        self._due_at = self._clock() + self._pause_s
        self._moves_seen = self._moves()
        return self._last

    def _moves(self) -> int:
        drafts = self._cache.draft_book
        ledgers = self._cache.book.ledgers + (() if drafts is None else drafts.ledgers)
        return sum(ledger.statistics().moves for ledger in ledgers)
