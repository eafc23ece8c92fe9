"""What a step of so many rows costs beside others, from what steps took. Pure.

A step's time has two parts that are learned apart: the level of the moment (a longer history, a busier machine), which all
sizes share, and the size's own share of it. So what was measured an hour ago at another length is still good to compare with,
and one slow step spoils nothing: a share is the median of the last few.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from statistics import median

from sojourn.core.errors import law

_KEPT = 9  # measurements of a size
_GUESSED = 3  # of them at first, from the sizes around: a single measurement is believed only if others agree
_PACE = 0.5  # of the level, towards what a step says it is
_JUMP = 0.7  # at most, as a logarithm: one step that was held up by something else does not move it further
_SLOPE = 0.17  # until it is measured: what a further row costs, in decodes of one (8 rows are about 2.2 of them)


class StepCost:
    """Told of steps that compute no prompts; knows what a step of any size would take."""

    def __init__(self) -> None:
        self._level = 0.0  # logarithm of the seconds that are 1
        self._shares: dict[int, deque[float]] = {}  # rows to what it took, in levels, over what was expected
        self._sizes: list[int] = []  # the keys, ascending
        self._medians: dict[int, float] = {}

    def measured(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took `seconds`."""
        law(rows > 0, "a step of %d rows", rows)
        if seconds <= 0:  # a clock that stands still says nothing
            return
        if not self._sizes:
            self._level = math.log(seconds / _expected(rows))
        surprise = math.log(seconds / self.relative(rows)) - self._level
        self._level += _PACE * max(-_JUMP, min(_JUMP, surprise))
        if rows not in self._shares:
            self._shares[rows] = deque([self._correction(rows)] * _GUESSED, maxlen=_KEPT)
            insort(self._sizes, rows)
        self._shares[rows].append(seconds / math.exp(self._level) / _expected(rows))
        self._medians[rows] = median(self._shares[rows])

    def relative(self, rows: int) -> float:
        """The time of a step of `rows` rows in a unit of its own: good for ratios only. Between two measured sizes it is
        in between; beyond them it grows as it would have been expected to."""
        return _expected(rows) * self._correction(rows)

    def _correction(self, rows: int) -> float:
        sizes, medians = self._sizes, self._medians
        if rows in medians:
            return medians[rows]
        if not sizes:
            return 1.0
        index = bisect_left(sizes, rows)
        if index == 0 or index == len(sizes):
            return medians[sizes[min(index, len(sizes) - 1)]]
        below, above = sizes[index - 1], sizes[index]
        part = (rows - below) / (above - below)
        return (1 - part) * medians[below] + part * medians[above]


def _expected(rows: int) -> float:
    return 1 + _SLOPE * (rows - 1)
