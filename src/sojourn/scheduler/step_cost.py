"""What a step of so many rows costs beside others, from what steps took. Pure.

A step's time has two parts that are learned apart: the level of the moment (a longer history, a busier machine), which all
sizes share, and the size's own share of it. So what was measured an hour ago at another length is still good to compare with,
and one slow step spoils nothing: a share is the median of the last few.

    rows       1    1    9    9    9    1        while the size is the same, what changes is the level;
               level     │    level     │        where it changes, the level is what it was a step ago, and what the larger
                       share of 9     share of 9      one took beside the smaller is a measurement of its share

So nothing is learned from steps of one size alone: whoever asks sees to it that there are others now and then.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from statistics import median

from sojourn.core.errors import law

_KEPT = 9  # measurements of a size
_GUESSED = 3  # of them at first, from the sizes around: a single measurement is believed only if others agree
_PACE = 0.5  # of the level, towards what a step says it is
_JUMP = 0.7  # at most, as a logarithm: one step that was held up by something else does not move it further
_SLOPE = (
    0.17  # until it is measured: what verifying a further row costs, in decodes of one (8 rows are about 2.2 of them)
)


@dataclass(frozen=True, slots=True)
class _Share:
    """What a size took over what was expected: in seconds of the smaller one it was measured beside (0: a guess)."""

    beside: int
    value: float


class StepCost:
    """Told of steps that compute no prompts; knows what a step of any size would take."""

    def __init__(self, guess: float = 0.0) -> None:
        """`guess`: what a row that is guessed costs beside that, in decodes: an expectation too."""
        self._slope = _SLOPE + guess
        self._level = 0.0  # logarithm of the seconds that are 1
        self._rows = 0  # of the step measured last; 0: none was
        self._shares: dict[int, deque[_Share]] = {}  # by rows, the last few
        self._sizes: list[int] = []  # the keys, ascending
        self._medians: dict[int, float] = {}

    def measured(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took `seconds`."""
        law(rows > 0, "a step of %d rows", rows)
        if seconds <= 0:  # a clock that stands still says nothing
            return
        self._know(rows)
        before, self._rows = self._rows, rows
        surprise = math.log(seconds / self.relative(rows)) - self._level
        if before == rows:
            self._level += _PACE * max(-_JUMP, min(_JUMP, surprise))
            return
        if rows > before > 0:
            self._learn(rows, before, math.exp(surprise))
        elif before > 0:
            self._learn(before, rows, math.exp(-surprise))
        self._level = math.log(seconds / self.relative(rows))

    def _know(self, rows: int) -> None:
        """Until it is measured it costs what the sizes around it let expect."""
        if rows not in self._shares:
            expected = self._correction(rows)
            self._shares[rows] = deque([_Share(0, expected)] * _GUESSED, maxlen=_KEPT)
            self._medians[rows] = expected
            insort(self._sizes, rows)

    def _learn(self, rows: int, smaller: int, surprise: float) -> None:
        """`rows` rows took so much more beside `smaller` than was believed. What smaller ones cost may be known better
        meanwhile: that goes into all of its measurements."""
        ratio = surprise * self.relative(rows) / self.relative(smaller)
        self._shares[rows].append(_Share(smaller, ratio / self._expected(rows)))
        self._medians[rows] = median(
            [share.value * (self.relative(share.beside) if share.beside else 1) for share in self._shares[rows]]
        )

    def relative(self, rows: int) -> float:
        """The time of a step of `rows` rows in a unit of its own: good for ratios only. Between two measured sizes it is
        in between; beyond them it grows as it would have been expected to."""
        return self._expected(rows) * self._correction(rows)

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

    def _expected(self, rows: int) -> float:
        return 1 + self._slope * (rows - 1)
