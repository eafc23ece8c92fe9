"""The rows of the step benchmark: what is done, how long it took on each side, what that makes. Runs nothing."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer import PeerConfig
from rich.table import Table

APPENDED = 32  # new tokens of an append row
DECODED = 64  # tokens of each sequence in a decode or batch row


@dataclass(frozen=True, slots=True)
class Row:
    """`tokens` is None where the time itself is the result."""

    work: str
    tokens: int | None

    @property
    def unit(self) -> str:
        return "ms" if self.tokens is None else "tokens/s"

    def value(self, seconds: float) -> float:
        return 1000 * seconds if self.tokens is None else self.tokens / seconds


@dataclass(frozen=True, slots=True)
class Result:
    row: Row
    ours: tuple[float, ...]  # seconds of each run
    peer: tuple[float, ...]
    config: PeerConfig

    @property
    def ratio(self) -> float:
        """Above 1: we are faster."""
        return statistics.median(self.peer) / statistics.median(self.ours)

    def as_json(self) -> dict[str, object]:
        return {
            "work": self.row.work,
            "ours": round(self.row.value(statistics.median(self.ours)), 2),
            "peer": round(self.row.value(statistics.median(self.peer)), 2),
            "ratio": round(self.ratio, 3),
            "unit": self.row.unit,
            "peer_config": str(self.config),
        }


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from starting a process to its first token. There is no peer, only a goal."""

    model: str
    seconds: tuple[float, ...]
    goal: float

    def as_json(self) -> dict[str, object]:
        return {
            "work": f"start-{self.model}",
            "ours": round(statistics.median(self.seconds), 2),
            "peer": None,
            "ratio": None,
            "unit": "s",
            "goal": self.goal,
        }


def _spread(row: Row, seconds: tuple[float, ...]) -> str:
    """The median, and the slowest and fastest run."""
    low, high = sorted((row.value(min(seconds)), row.value(max(seconds))))
    return f"{row.value(statistics.median(seconds)):,.1f} [dim]{low:,.0f} – {high:,.0f}[/dim]"


def table(results: list[Result], starts: list[Start]) -> Table:
    shown = Table(title="SmolLM2 135M, two threads, one interleaved run", title_justify="left")
    for heading in ("work", "unit", "Sojourn", "llama.cpp", "ratio", "llama.cpp ran with"):
        shown.add_column(heading, justify="right" if heading in ("Sojourn", "llama.cpp", "ratio") else "left")
    for result in results:
        row = result.row
        shown.add_row(
            row.work,
            row.unit,
            _spread(row, result.ours),
            _spread(row, result.peer),
            f"[bold]{result.ratio:.2f}[/bold]",
            str(result.config),
        )
    for start in starts:
        median = statistics.median(start.seconds)
        shown.add_row(f"start-{start.model}", "s", f"{median:.2f}", "", "", f"goal: under {start.goal:g} s")
    return shown


def write(path: Path, results: list[Result], starts: list[Start]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [result.as_json() for result in results] + [start.as_json() for start in starts]
    path.write_text(json.dumps(entries, indent=1) + "\n")
