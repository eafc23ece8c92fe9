"""Speed of a step against llama.cpp, one interleaved run on SmolLM2: `make bench`. See benchmarks/README.md.

First the peer is run in each of its ways and the fastest is chosen row by row; then both sides take turns.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from benchmarks.ours import Ours
from benchmarks.peer import PeerConfig, PeerProcess, requantize
from benchmarks.rows import APPENDED, DECODED, Result, Row, Start, table, write
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sojourn.app.config import cache_dir
from sojourn.models import catalog
from sojourn.models.progress import SilentProgress

RESULTS = Path(__file__).parent / "results" / "step.json"
LENGTHS = (512, 2048, 8000)
BATCHES = (4, 16)
UBATCHES = (128, 256, 512)
FORMATS = ("Q4_0", "Q4_1")
STARTS = {"smollm2": 2.0, "gemma3-270m": 4.0}  # goals in seconds
TRIES = 2  # runs of each way of the peer before choosing, after one that does not count
PAUSE = 0.05  # seconds before each run: the other side's threads have stopped spinning by then

Timed = Callable[[], float]


def runs(timed: Timed, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        time.sleep(PAUSE)
        seconds.append(timed())
    return seconds


def interleave(ours: Timed, peer: Timed, repeats: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Alternately, after one run each that does not count."""
    runs(ours, 1), runs(peer, 1)
    pairs = [(*runs(ours, 1), *runs(peer, 1)) for _ in range(repeats)]
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


class Text:
    """Token ids to work on; every call of `fresh` gives other ones. Sampled tokens need not make sense."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def fresh(self, count: int) -> list[int]:
        return [int(token) for token in self._random.integers(100, 49000, count)]


@dataclass(frozen=True)
class Bench:
    ours: Ours
    peer: PeerProcess
    text: Text
    repeats: int
    progress: Progress
    task: TaskID

    def say(self, what: str) -> None:
        self.progress.update(self.task, description=what, advance=1)

    def choose(self, work: str, ways: dict[PeerConfig, Timed]) -> PeerConfig:
        """The fastest way of the peer."""
        medians = {}
        for config, timed in ways.items():
            self.say(f"{work}: llama.cpp with {config}")
            medians[config] = statistics.median(runs(timed, 1 + TRIES)[1:])
        return min(medians, key=lambda config: medians[config])

    def compare(self, row: Row, ours: Timed, config: PeerConfig, peer: Timed) -> Result:
        self.say(f"{row.work}: both sides")
        return Result(row, *interleave(ours, peer, self.repeats), config)


def prefill_rows(bench: Bench) -> list[Result]:
    length = LENGTHS[0]
    row = Row(f"prefill-{length}", length)

    def peer(config: PeerConfig) -> float:
        bench.peer.cut(config, 0, 0)
        return bench.peer.append(config, 0, bench.text.fresh(length))

    configs = [PeerConfig(*way) for way in product(FORMATS, (True, False), UBATCHES)]
    best = bench.choose(row.work, {config: partial(peer, config) for config in configs})
    for config in configs:
        if config != best:
            bench.peer.release(config)
    result = bench.compare(row, lambda: bench.ours.prefill(bench.text.fresh(length)), best, partial(peer, best))
    bench.peer.release(best)
    return [result]


def length_rows(bench: Bench) -> list[Result]:
    """Decode and append on one sequence. The peer's is filled once, upwards while choosing, and cut back afterwards."""
    text = bench.text.fresh(LENGTHS[-1] + APPENDED)
    configs = [PeerConfig(weights, flash, context=8192) for weights, flash in product(FORMATS, (True, False))]

    def peer_decode(config: PeerConfig, length: int) -> float:
        bench.peer.cut(config, 0, length)
        return bench.peer.decode(config, text[:1], DECODED)

    def peer_append(config: PeerConfig, length: int) -> float:
        """Like ours: the last token of the history was sampled, so its KV is computed with the new ones."""
        bench.peer.cut(config, 0, length - 1)
        return bench.peer.append(config, 0, text[length - 1 : length + APPENDED])

    chosen: dict[tuple[str, int], PeerConfig] = {}
    filled = 0
    for length in LENGTHS:
        for config in configs:
            bench.peer.cut(config, 0, filled)
            bench.peer.append(config, 0, text[filled:length])
        filled = length
        for name, peer in (("decode", peer_decode), ("append", peer_append)):
            ways: dict[PeerConfig, Timed] = {config: partial(peer, config, length) for config in configs}
            chosen[name, length] = bench.choose(f"{name} at {length}", ways)
            for config in configs:  # whole again, with the text's own tokens
                bench.peer.cut(config, 0, length - 1)
                bench.peer.append(config, 0, text[length - 1 : length])
    results = []
    for length in reversed(LENGTHS):
        held = text[:length]
        decode, append = chosen["decode", length], chosen["append", length]
        appended = text[length : length + APPENDED]
        results.append(
            bench.compare(
                Row(f"append-{APPENDED}-at-{length}", None),
                partial(bench.ours.append, held, appended),
                append,
                partial(peer_append, append, length),
            )
        )
        results.append(
            bench.compare(
                Row(f"decode-{length}", DECODED),
                partial(bench.ours.decode, [held], DECODED),
                decode,
                partial(peer_decode, decode, length),
            )
        )
    for config in configs:
        bench.peer.release(config)
    return results


def batch_rows(bench: Bench) -> list[Result]:
    length = LENGTHS[0]
    texts = [bench.text.fresh(length) for _ in range(max(BATCHES))]

    def peer(config: PeerConfig, size: int) -> float:
        for sequence in range(size):
            bench.peer.cut(config, sequence, length)
        return bench.peer.decode(config, [text[0] for text in texts[:size]], DECODED)

    results = []
    for size in BATCHES:
        row = Row(f"batch-{size}", size * DECODED)
        room = size * 1024  # a whole number of blocks for each sequence, however the peer divides it
        ways = product(FORMATS, (True, False), (True, False))
        configs = [PeerConfig(w, flash, unified=u, context=room, sequences=size) for w, flash, u in ways]
        for config in configs:
            for sequence in range(size):
                bench.peer.append(config, sequence, texts[sequence])
        timed: dict[PeerConfig, Timed] = {config: partial(peer, config, size) for config in configs}
        best = bench.choose(row.work, timed)
        results.append(bench.compare(row, partial(bench.ours.decode, texts[:size], DECODED), best, timed[best]))
        for config in configs:
            bench.peer.release(config)
    return results


def start_row(model: str, goal: float, repeats: int) -> Start:
    """From starting a process to its first token, the model being packed already."""

    def timed() -> float:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.first_token", model]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            seconds = time.perf_counter() - begin
        if line.strip() != "first token":
            raise RuntimeError(f"{model} did not start")
        return seconds

    return Start(model, tuple(runs(timed, repeats + 1)[1:]), goal)


def peer_models() -> dict[str, str]:
    """The shipped file, and its Q4_0 form, made once."""
    shipped = catalog.fetch(catalog.CATALOG["smollm2"], cache_dir() / "files", SilentProgress())
    repacked = cache_dir() / "bench" / "smollm2-q4_0.gguf"
    if not repacked.exists():
        repacked.parent.mkdir(parents=True, exist_ok=True)
        requantize(shipped, repacked)
    return {"Q4_1": str(shipped), "Q4_0": str(repacked)}


ORDER = ("prefill", "decode", "batch", "append")


def in_order(results: Sequence[Result]) -> list[Result]:
    def place(result: Result) -> tuple[int, int]:
        kind, *_, number = result.row.work.split("-")
        return ORDER.index(kind), int(number)

    return sorted(results, key=place)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of a step with llama.cpp on SmolLM2.")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side per row (default 5)")
    parser.add_argument("--only", choices=["prefill", "lengths", "batch", "start"], help="one group of rows")
    arguments = parser.parse_args()
    groups = {"prefill": prefill_rows, "lengths": length_rows, "batch": batch_rows}
    steps = {"prefill": 13, "lengths": 30, "batch": 18, "start": len(STARTS)}
    wanted = [arguments.only] if arguments.only else [*groups, "start"]

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    console = Console()
    results: list[Result] = []
    starts: list[Start] = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("models", total=sum(steps[group] for group in wanted))
        ours = Ours("smollm2", sequences=max(BATCHES), pool_tokens=32768)
        peer = PeerProcess(peer_models())
        bench = Bench(ours, peer, Text(), arguments.repeats, progress, task)
        for group in wanted:
            if group in groups:
                results += groups[group](bench)
        peer.stop()
        ours.close()
        for model, goal in STARTS.items() if "start" in wanted else ():
            bench.say(f"start of {model}")
            starts.append(start_row(model, goal, arguments.repeats))
    results = in_order(results)
    console.print(table(results, starts))
    if not arguments.only:
        write(RESULTS, results, starts)
        console.print(
            f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}"
        )


if __name__ == "__main__":
    main()
