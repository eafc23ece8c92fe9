"""How many tokens of long prompts a step may carry while short ones come and go. Pure; learns what a step costs.

    seconds of a step  =  what any step costs  +  rows x what a row costs        `row_worth` is the first over the second

A turn of a few tokens waits for the step that runs, and then for its own. Both are short if no step has many rows of a prompt
that takes many steps anyway. After a short prompt was there it is therefore given as many rows as an empty step costs, or
half of what all others in the step cost: so what a short turn waits for is at most about twice what it would be without, and
a long prompt moves in every step.

    rows            ╱   a share of the time since the last short prompt
          ─────────╯    as much as an empty step, or half of what the others cost

The longer none has come, the wider steps may be: the next turn waits for a small part of the time that passed without any.
Whoever talks ten times a second makes steps of milliseconds, and nobody is slowed down for long by one who has left. Knows
no pages and no requests.
"""

SHORT_TOKENS = 64  # left to compute, at most, and in one chunk
WAIT_SHARE = 1 / 32  # of the time without a short prompt, that the next one may wait for a step
ROWS_MIN = 4  # below, a long prompt would take for ever
_WORTH = 6.0  # until it is measured: a row is a sixth of a step of none
_WORTH_MAX = 512.0
_KEPT = 0.98  # of what was measured, with every step
_HELD_UP = 2.0  # times what was expected: more is not the step's own doing
_SPREAD_MIN = 4.0  # variance of rows, below which they say nothing of what a row costs
_WEIGHT_MIN = 8.0


class RowCost:
    """A line through the steps of late, weighted by how late: least squares over decayed means."""

    def __init__(self) -> None:
        self._weight = 0.0  # of all steps together
        self._rows = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0  # of the rows; of rows and seconds
        self._worth = _WORTH

    @property
    def row_worth(self) -> float:
        """Rows that cost as much as a step of none."""
        return self._worth

    def rows_in(self, seconds: float) -> float:
        """That a step of so many seconds has; below nought where it is shorter than a step of none."""
        if self._seconds <= 0:
            return 0.0
        return seconds * (self._worth + self._rows) / self._seconds - self._worth

    def measured(self, rows: int, seconds: float) -> None:
        if seconds <= 0:  # a clock that stands still says nothing
            return
        if self._weight > _WEIGHT_MIN:
            expected = self._seconds * (self._worth + rows) / (self._worth + self._rows)
            seconds = min(seconds, _HELD_UP * expected)
        self._weight = _KEPT * self._weight + 1
        new = 1 / self._weight
        more, longer = rows - self._rows, seconds - self._seconds
        self._rows += new * more
        self._seconds += new * longer
        self._variance = (1 - new) * (self._variance + new * more * more)
        self._covariance = (1 - new) * (self._covariance + new * more * longer)
        if self._weight < _WEIGHT_MIN or self._variance < _SPREAD_MIN or self._covariance <= 0:
            return
        slope = self._covariance / self._variance
        self._worth = min(max(1.0, self._seconds / slope - self._rows), _WORTH_MAX)


class LatencyBound:
    """Told of short prompts and of what steps took; says how wide long prompts may make a step."""

    def __init__(self, chunk_max: int) -> None:
        self.short_max = min(SHORT_TOKENS, chunk_max)
        self._cost = RowCost()
        self._without_s: float | None = None  # seconds of steps since the last short prompt; None: there was none yet

    def is_short(self, remaining: int) -> bool:
        """Whether somebody with so many tokens to compute is who others make room for."""
        return remaining <= self.short_max

    def short_ran(self) -> None:
        """A short prompt has its place in the step that is planned."""
        self._without_s = 0.0

    def measured(self, rows: int, seconds: float) -> None:
        self._cost.measured(rows, seconds)
        if self._without_s is not None:
            self._without_s += seconds

    def rows_max(self, others: int) -> int | None:
        """For all long prompts together, beside `others` rows in a step. None: nobody short was there yet."""
        if self._without_s is None:
            return None
        worth = self._cost.row_worth
        unnoticed = self._cost.rows_in(WAIT_SHARE * self._without_s) - others
        return max(ROWS_MIN, int(worth), int((worth + others) / 2), int(unnoticed))
