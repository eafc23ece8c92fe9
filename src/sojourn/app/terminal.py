"""What the commands print with: consoles, and the progress of downloads and packing.

On a terminal progress is a bar; elsewhere it is a plain line at every quarter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sojourn.models.progress import Progress as ReportsProgress

MIB = 1 << 20


def plain_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: no markup, no numbers coloured, no lines broken in a model's answer."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)


class PlainProgress:
    """One line when a piece of work starts and at every further quarter of it."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._what = ""
        self._total = 0
        self._done = 0

    def start(self, total: int, what: str) -> None:
        self._what, self._total, self._done = what, total, 0
        self._tell(f"{what} ({total / MIB:,.0f} MiB)")

    def advance(self, amount: int) -> None:
        before = self._quarter()
        self._done += amount
        if self._quarter() > before:
            self._tell(f"{self._what}: {self._quarter() * 25} %")

    def message(self, text: str) -> None:
        self._tell(text)

    def _quarter(self) -> int:
        return self._done * 4 // self._total if self._total > 0 else 0


class BarProgress:
    """One bar per piece of work, with bytes, pace and time left."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def start(self, total: int, what: str) -> None:
        self._task = self._bars.add_task(escape(what), total=total)

    def advance(self, amount: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def message(self, text: str) -> None:
        self._bars.console.print(text)


@contextmanager
def show_progress(console: Console) -> Iterator[ReportsProgress]:
    """Progress on `console` while the block runs."""
    if not console.is_terminal:
        yield PlainProgress(console.print)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        yield BarProgress(bars)
