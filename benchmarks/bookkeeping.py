"""What bookkeeping and scheduling cost: `python -m benchmarks.bookkeeping`. Medians of one run; two minutes.

turn      a session's turn (resume, 32 new tokens, 32 generated, parked) at three lengths of history, taking turns
decode    a step of decoding beside the device: plan, inputs, samples, settle, events
census    every page of 200,000 counted from its owners' side, with sessions idle and running
share     of a step of SmolLM2, decoding at 512 tokens: all that is not the native core

All but `share` run on a back end that takes no time, and their times are those of the thread on its processor, so that
other processes show little. Lengths in tokens.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sojourn.app.build import World, build_parts, prepare
from sojourn.app.config import EngineOptions, cache_dir
from sojourn.audit.census import census
from sojourn.backends.protocol import Backend, Batch, BatchOutput
from sojourn.cache.radix import RadixCache
from sojourn.core.step import SamplingParams
from sojourn.engine.loop import EngineLoop
from sojourn.models.progress import SilentProgress
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import PoolLayout
from sojourn.runner.runner import Runner
from sojourn.scheduler.scheduler import Scheduler, SchedulerConfig
from sojourn.sessions.service import ServiceConfig, SessionService, TurnParams
from sojourn.sessions.slots import SessionAwareCache

RESULTS = Path(__file__).parent / "results" / "bookkeeping.json"
PAGE_SIZE = 16
WINDOW = 512
SEQS_MAX = 64
CONTEXT = 160_000
POOL_PAGES = 200_000
VOCAB_SIZE = 49_152
HISTORIES = (1_000, 10_000, 100_000)
TURN_TOKENS = 32  # new ones, and as many generated
CENSUS_PAGES = 200_000
SAMPLING = SamplingParams(temperature=0.8, top_k=40, top_p=0.95)


@dataclass(frozen=True, slots=True)
class Figure:
    """A median with its quartiles, or a single number; `goal` is an upper bound."""

    work: str
    unit: str
    value: float
    quartiles: tuple[float, float] | None = None
    goal: float | None = None

    @property
    def is_met(self) -> bool | None:
        return None if self.goal is None else self.value <= self.goal


def figure(work: str, unit: str, values: list[float], goal: float | None = None) -> Figure:
    low, median, high = statistics.quantiles(values, n=4)
    return Figure(work, unit, median, (low, high), goal)


class Nowhere:
    """A back end that takes no time: it samples the same token for ever."""

    vocab_size = VOCAB_SIZE
    seqs_max = SEQS_MAX

    def __init__(self) -> None:
        self._outputs: dict[int, BatchOutput] = {}

    def step(self, batch: Batch) -> BatchOutput:
        rows = len(batch.logit_rows)
        if rows not in self._outputs:
            none = np.empty(0, dtype=np.float32)
            tops = np.empty((rows, 0), dtype=np.int32), np.empty((rows, 0), dtype=np.float32)
            self._outputs[rows] = BatchOutput(np.full(rows, 7, dtype=np.int32), none, *tops, None)
        return self._outputs[rows]

    def close(self) -> None:
        """Nothing is held."""


class Timed:
    """Another back end, and the seconds its last step took."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.vocab_size = inner.vocab_size
        self.seqs_max = inner.seqs_max
        self.seconds = 0.0

    def step(self, batch: Batch) -> BatchOutput:
        begun = time.perf_counter()
        output = self._inner.step(batch)
        self.seconds = time.perf_counter() - begun
        return output

    def close(self) -> None:
        self._inner.close()


def service(window: int, pool_pages: int) -> tuple[SessionService, SessionAwareCache]:
    layout = PoolLayout(PAGE_SIZE, window)
    cache = SessionAwareCache(RadixCache(HoldingBook(layout, [pool_pages // layout.num_pools] * layout.num_pools)))
    config = SchedulerConfig(CONTEXT, SEQS_MAX, step_tokens_max=1024 + SEQS_MAX, chunk_tokens_max=1024)
    loop = EngineLoop(
        Scheduler(cache, config, time.perf_counter), Runner(Nowhere(), time.perf_counter), cache, time.perf_counter
    )
    ids = count()
    sessions = SessionService(
        loop, cache, ServiceConfig(VOCAB_SIZE, CONTEXT), clock=time.perf_counter, new_id=lambda: str(next(ids))
    )
    return sessions, cache


def run(sessions: SessionService) -> None:
    while sessions.has_work:
        sessions.step()


def text(length: int, salt: int) -> list[int]:
    return [(position * 31 + salt) % VOCAB_SIZE for position in range(length)]


def kind(window: int) -> str:
    return f"window {window}" if window else "full attention"


def turns(window: int, rounds: int = 12, turns_each: int = 8) -> Iterator[Figure]:
    """Fresh sessions in each round; the three lengths take turns, so that what disturbs one disturbs all."""
    worlds = {history: service(window, POOL_PAGES)[0] for history in HISTORIES}
    times: dict[int, list[float]] = {history: [] for history in HISTORIES}
    for salt in range(rounds):
        for history, sessions in worlds.items():
            session_id = sessions.open(f"round {salt}")
            sessions.start_turn(session_id, text(history, salt), TurnParams(max_new_tokens=1))
            run(sessions)
        for number in range(turns_each):
            new = text(TURN_TOKENS, number)
            for history, sessions in worlds.items():
                begun = time.thread_time()
                sessions.start_turn(f"round {salt}", new, TurnParams(max_new_tokens=TURN_TOKENS))
                run(sessions)
                times[history].append(1e6 * (time.thread_time() - begun))
    for history in HISTORIES:
        yield figure(f"turn at {history:,}, {kind(window)}", "us", times[history])
    shortest, longest = (statistics.median(times[history]) for history in (HISTORIES[0], HISTORIES[-1]))
    yield Figure(
        f"turn at {HISTORIES[-1]:,} over {HISTORIES[0]:,}, {kind(window)}", "ratio", longest / shortest, goal=1.3
    )


def decode(window: int, sequences: int, steps: int = 1001) -> Figure:
    sessions, _ = service(window, POOL_PAGES)
    for salt in range(sequences):
        sessions.submit(text(500, salt), TurnParams(max_new_tokens=steps + 200))
    for _ in range(100):  # past the prompts
        sessions.step()
    times = []
    for _ in range(steps):
        begun = time.thread_time()
        sessions.step()
        times.append(1e6 * (time.thread_time() - begun))
    return figure(f"decode step of {sequences}, {kind(window)}", "us", times)


def audit(window: int, repeats: int = 51) -> Figure:
    """Sessions of some turns each fill nine tenths of the pools; the last ones are in the middle of a turn."""
    sessions, cache = service(window, CENSUS_PAGES)
    per_session = 30_000
    number = int(0.9 * CENSUS_PAGES / cache.book.layout.num_pools * PAGE_SIZE) // per_session
    for salt in range(number):
        session_id = sessions.open()
        for length in (per_session - 8 * 500, *[500] * 8):
            sessions.start_turn(session_id, text(length, 1000 * salt), TurnParams(max_new_tokens=1))
            run(sessions)
    for session_id in sessions.session_ids()[-16:]:
        sessions.start_turn(session_id, [1, 2, 3], TurnParams(max_new_tokens=100))
    for _ in range(20):
        sessions.step()
    times = []
    for _ in range(repeats):
        begun = time.thread_time()
        counted = census(cache)
        times.append(1e3 * (time.thread_time() - begun))
    pages = sum(pool.total for pool in counted.pools)
    holdings = counted.holdings_idle + counted.holdings_running
    return figure(f"census of {pages:,} pages, {holdings} holdings, {kind(window)}", "ms", times, goal=10.0)


def shares(steps: int = 101) -> Iterator[Figure]:
    options = EngineOptions(context=1024, pool_tokens=16 * 1024, max_running=16)
    world = World(cache_dir(), time.perf_counter, lambda form: form, seed=0, free_memory=None)
    prepared = prepare("smollm2", options, world, SilentProgress())
    backend = Timed(prepared.backend)
    for sequences, goal in ((1, 5.0), (16, 10.0)):
        parts = build_parts(prepared.model, options, prepared.size, backend, world.clock)
        for salt in range(sequences):
            parts.service.submit(text(512, salt), TurnParams(SAMPLING, steps + 100, ignore_eos=True))
        while parts.cache.book.holdings == {} or any(
            h.kv_committed_len < 520 for h in parts.cache.book.holdings.values()
        ):
            parts.service.step()
        ours, whole = [], []
        for _ in range(steps):
            begun = time.perf_counter()
            parts.service.step()
            whole.append(time.perf_counter() - begun)
            ours.append(whole[-1] - backend.seconds)
        share = [100 * mine / step for mine, step in zip(ours, whole, strict=True)]
        yield figure(f"SmolLM2 step of {sequences}", "ms", [1e3 * step for step in whole])
        yield figure(f"outside the core, step of {sequences}", "us", [1e6 * mine for mine in ours])
        yield figure(f"share of the step outside the core, {sequences}", "%", share, goal)
    backend.close()


def figures(names: tuple[str, ...]) -> Iterator[Figure]:
    for window in (0, WINDOW):
        if "turn" in names:
            yield from turns(window)
        if "decode" in names:
            yield from (decode(window, sequences) for sequences in (1, 16, 64))
        if "census" in names:
            yield audit(window)
    if "share" in names:
        yield from shares()


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(rows: list[Figure], title: str) -> Table:
    shown = Table(title=title, title_justify="left")
    shown.add_column("work")
    for heading in ("median", "unit", "quartiles", "goal"):
        shown.add_column(heading, justify="right" if heading in ("median", "quartiles") else "left", no_wrap=True)
    for row in rows:
        spread = "" if row.quartiles is None else f"[dim]{short(row.quartiles[0])} – {short(row.quartiles[1])}[/dim]"
        verdict = {None: "", True: "[green]met[/green]", False: "[red]missed[/red]"}[row.is_met]
        goal = "" if row.goal is None else f"{row.goal:g}: {verdict}"
        shown.add_row(row.work, f"[bold]{short(row.value)}[/bold]", row.unit, spread, goal)
    return shown


def write(path: Path, rows: list[Figure]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        {"work": row.work, "value": round(row.value, 3), "unit": row.unit, "goal": row.goal, "met": row.is_met}
        for row in rows
    ]
    path.write_text(json.dumps(entries, indent=1) + "\n")


def main() -> None:
    names = ("turn", "decode", "census", "share")
    parser = argparse.ArgumentParser(description="Time bookkeeping and scheduling.")
    parser.add_argument("--only", choices=names, help="one group of rows; writes nothing")
    only = parser.parse_args().only
    rows = []
    console = Console()
    with console.status("") as status:
        for row in figures(names if only is None else (only,)):
            rows.append(row)
            status.update(row.work)
    console.print(table(rows, "Bookkeeping and scheduling: medians of one run, quartiles beside them"))
    if only is None:
        write(RESULTS, rows)
        console.print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
