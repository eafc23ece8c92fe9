"""Callers of every kind on a running server for a while: `make load`, or `python -m tests.load.run MINUTES`.

Holds when all that `driving` checks does, and neither part of the server grew.
"""

import argparse

from rich.console import Console
from rich.table import Table

from sojourn.app.config import cache_dir
from tests.load.caller import Caller, Sizes, check
from tests.load.driving import Summary, drive
from tests.support.server import Server, serving

CALLERS = 64
GROWTH_MAX = 1.0  # MiB a minute
SMOLLM2 = ("--context", "1024", "--pool-tokens", "8192", "--chunk", "128", "--threads", "2")
SMOLLM2_SIZES = Sizes("smollm2", vocab=49_152, context=1024, long_prompt=400)


def run(server: Server, *, seconds: float, seed: int, sizes: Sizes, growth_max: float) -> Summary:
    summary = Summary()
    drive(
        server,
        summary,
        seconds=seconds,
        cast=lambda asking: [Caller(number, seed, asking, sizes) for number in range(CALLERS)],
    )
    for part, growth in summary.growth.items():
        check(growth.mib_per_minute < growth_max, f"growth of the {part}, MiB a minute", growth.mib_per_minute)
    return summary


def table(summary: Summary) -> Table:
    shown = Table(title=f"{CALLERS} callers, {summary.seconds:,.0f} s", title_justify="left")
    shown.add_column("what")
    shown.add_column("count", justify="right")
    for name in sorted(summary.done):
        shown.add_row(name, f"{summary.done[name]:,}")
    for part, growth in summary.growth.items():
        low, high = growth.mib
        shown.add_row(f"{part}: resident MiB after warm-up, at the end", f"{low:,.1f}, {high:,.1f}")
        shown.add_row(f"{part}: growth, MiB a minute", f"{growth.mib_per_minute:+.2f}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server with every kind of caller.")
    parser.add_argument("minutes", type=float, nargs="?", default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth-max", type=float, default=GROWTH_MAX, help="MiB a minute")
    arguments = parser.parse_args()
    console = Console()
    seconds, seed, most = 60 * arguments.minutes, arguments.seed, arguments.growth_max
    with serving(cache_dir(), *SMOLLM2, model="smollm2", cache=cache_dir()) as server:
        summary = run(server, seconds=seconds, seed=seed, sizes=SMOLLM2_SIZES, growth_max=most)
    console.print(table(summary))
    console.print("every answer was one that was asked for; nothing leaked")


if __name__ == "__main__":
    main()
