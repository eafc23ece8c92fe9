"""What a soak found, as a table, as Markdown and as JSON; and which bounds did not hold."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from tests.load.driving import Summary
from tests.soak.probe import Times, percentile

GROWTH_MAX = 1.0  # MiB a minute
SLOWDOWN_MAX = 1.2  # p99 of the last quarter over that of the first
QUARTER_MIN = 20  # probes; fewer say nothing


@dataclass(slots=True)
class Findings:
    title: str
    summary: Summary = field(default_factory=Summary)
    first_token: Times = field(default_factory=Times)
    whole_turn: Times = field(default_factory=Times)
    others: Times = field(default_factory=Times)  # processors busy with other things
    counted: dict[str, float] = field(default_factory=dict)  # by the server

    @property
    def timed(self) -> tuple[tuple[str, Times], ...]:
        return ("first token of a short turn", self.first_token), ("a short turn of four tokens", self.whole_turn)

    def broken(self, growth_max: float = GROWTH_MAX, slowdown_max: float = SLOWDOWN_MAX) -> list[str]:
        """What did not hold, a sentence each."""
        found = []
        for part, growth in self.summary.growth.items():
            if not growth.mib_per_minute < growth_max:
                found.append(f"the {part} grew by {growth.mib_per_minute:.2f} MiB a minute, {growth_max} allowed")
        for name, times in self.timed:
            quarters = times.quarters()
            if min(len(quarter) for quarter in quarters) < QUARTER_MIN:
                found.append(f"{name}: {[len(quarter) for quarter in quarters]} probes per quarter are too few")
            elif not (ratio := slowdown(times)) <= slowdown_max:
                found.append(f"{name}: p99 of the last quarter is {ratio:.2f} of the first, {slowdown_max} allowed")
        return found

    def rows(self) -> Iterator[tuple[str, str]]:
        yield "seconds", f"{self.summary.seconds:,.0f}"
        for part, growth in self.summary.growth.items():
            low, high = growth.mib
            yield f"{part}: resident MiB after warm-up, at the end", f"{low:,.1f}, {high:,.1f}"
            yield f"{part}: growth after warm-up, MiB a minute", f"{growth.mib_per_minute:+.3f}"
        for name, times in self.timed:
            for share in (0.5, 0.99):
                values = ", ".join(f"{1000 * percentile(quarter, share):,.0f}" for quarter in times.quarters())
                yield f"{name}: p{100 * share:.0f} by quarter after warm-up, ms", values
            yield f"{name}: p99 of the last quarter over the first", f"{slowdown(times):.3f}"
        yield "probes by quarter", ", ".join(f"{len(quarter):,}" for quarter in self.first_token.quarters())
        means = (sum(quarter) / max(1, len(quarter)) for quarter in self.others.quarters())
        yield "processors busy with other things, by quarter", ", ".join(f"{mean:.2f}" for mean in means)
        for name, count in sorted(self.summary.done.items()):
            yield name, f"{count:,}"
        for name, value in sorted(self.counted.items()):
            yield name, f"{value:,.0f}"

    def table(self) -> Table:
        shown = Table(title=self.title, title_justify="left")
        shown.add_column("what")
        shown.add_column("", justify="right")
        for row in self.rows():
            shown.add_row(*row)
        return shown

    def markdown(self) -> str:
        rows = "".join(f"| {name} | {value} |\n" for name, value in self.rows())
        verdict = "".join(f"* {sentence}\n" for sentence in self.broken()) or "All bounds held.\n"
        return f"{self.title}\n\n| what | |\n|---|---:|\n{rows}\n{verdict}"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "soak.md").write_text(self.markdown())
        whole = {"title": self.title, "broken": self.broken(), "rows": dict(self.rows())}
        (folder / "soak.json").write_text(json.dumps(whole, indent=1) + "\n")


def slowdown(times: Times) -> float:
    quarters = times.quarters()
    before = percentile(quarters[0], 0.99)
    return percentile(quarters[-1], 0.99) / before if before else 0.0
