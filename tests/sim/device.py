"""A fake device: remembers which token was written where, and checks every read a real one would make.

Its page tables know only the edits that plans carry, so a forgotten edit is a wrong read. Steps run in launch order, each
at any time between its launch and its retirement.
"""

from dataclasses import dataclass

import numpy as np

from sojourn.core.ids import NULL_PAGE
from sojourn.core.step import TableEdit, TokenArray


class StaleRead(AssertionError):
    """A step read a place that does not hold the token it should."""


@dataclass(eq=False)
class Job:
    """One sequence's share of one step: reads everything before `start`, writes `tokens` from there."""

    row: int
    start: int
    tokens: TokenArray  # drafts that will be rejected are negative
    edits: tuple[TableEdit, ...]
    text: TokenArray  # what the sequence should find before `start`
    has_run: bool = False


class FakeDevice:
    def __init__(self, totals: tuple[int, ...], page_size: int, window: int, rows: int, context: int) -> None:
        self.page_size = page_size
        self.window = window
        pages = -(-context // page_size)
        self._tables = [np.zeros((rows, pages), dtype=np.int32) for _ in totals]
        self._tokens = [np.full((total, page_size), -(10**9), dtype=np.int64) for total in totals]
        self._positions = [np.full((total, page_size), -1, dtype=np.int64) for total in totals]
        self.reads = 0

    def run(self, job: Job) -> None:
        job.has_run = True
        for edit in job.edits:
            self._tables[edit.pool][job.row, edit.first : edit.first + len(edit.pages)] = edit.pages
        for pool in range(len(self._tables)):
            first = 0 if pool == 0 else max(0, job.start - (self.window - 1))
            self._read(pool, job, first)
            positions = np.arange(job.start, job.start + len(job.tokens))
            pages = self._tables[pool][job.row, positions // self.page_size]
            if (pages == NULL_PAGE).any():
                raise StaleRead(f"pool {pool}: writes {positions} through the null page")
            self._tokens[pool][pages, positions % self.page_size] = job.tokens
            self._positions[pool][pages, positions % self.page_size] = positions

    def _read(self, pool: int, job: Job, first: int) -> None:
        positions = np.arange(first, job.start)
        pages = self._tables[pool][job.row, positions // self.page_size]
        at = pages, positions % self.page_size
        wrong = (
            (pages == NULL_PAGE)
            | (self._positions[pool][at] != positions)
            | (self._tokens[pool][at] != job.text[first : job.start])
        )
        self.reads += len(positions)
        if wrong.any():
            where = int(positions[wrong][0])
            raise StaleRead(
                f"pool {pool} position {where}: page {pages[where - first]} holds token "
                f"{self._tokens[pool][at][where - first]} of position {self._positions[pool][at][where - first]}, "
                f"not {job.text[where]}"
            )
