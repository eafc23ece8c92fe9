"""What guessing ahead brings, and what a step costs beside the core: `python -m benchmarks.speculation`. Some minutes.

speedup    work that repeats what is there (a code edit, extraction, quoting) and free text, with n-gram guesses over without:
           tokens per second after the first token, two engines that take turns, the same tokens from both
overhead   a step of SmolLM2's time that is not the core's, with overlap off and on

Leave the machine alone meanwhile. See benchmarks/README.md.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.speculation_texts import TEXTS, Text
from benchmarks.timed_engine import Timed
from rich.console import Console
from rich.table import Table

from sojourn import Engine
from sojourn.app.build import World, build_parts, prepare
from sojourn.app.config import EngineOptions, cache_dir
from sojourn.app.turn import Usage
from sojourn.core.step import SamplingParams
from sojourn.models.progress import SilentProgress
from sojourn.sessions.service import TurnParams

RESULTS = Path(__file__).parent / "results" / "speculation.json"
MODELS = {
    "smollm2": ("", "<|im_end|><|endoftext|>"),
    "gemma3-270m": ("<bos>", "<eos><end_of_turn>"),
}  # first; never said
TOKENS = 192  # generated in a run
REPEATS = 7
PAUSE = 0.05  # seconds before each run: the other engine's threads have stopped spinning by then
GOAL_REPEATS, GOAL_FREE = 2.0, 0.98
HIGH = 0.7  # the share of guesses that stand from which the first goal counts
SAMPLING = SamplingParams(temperature=0.8, top_k=40, top_p=0.95)
HISTORY, STEPS = 512, 150  # of the overhead


@dataclass(frozen=True, slots=True)
class Speedup:
    model: str
    text: Text
    ratio: float  # median of the pairs' ratios
    spread: tuple[float, float]
    tokens_per_s: tuple[float, float]  # medians without and with guesses
    acceptance: float | None  # of the guesses; None: there were none
    guessed: int  # per run, the median

    @property
    def goal(self) -> float:
        is_high = self.text.repeats and self.acceptance is not None and self.acceptance >= HIGH
        return GOAL_REPEATS if is_high else GOAL_FREE

    def as_json(self) -> dict[str, object]:
        return {
            "work": f"{self.text.name}, {self.model}",
            "ratio": round(self.ratio, 3),
            "tokens_per_s": round(self.tokens_per_s[1], 1),
            "tokens_per_s_without": round(self.tokens_per_s[0], 1),
            "acceptance": None if self.acceptance is None else round(self.acceptance, 3),
            "guessed": self.guessed,
            "goal": self.goal,
            "met": self.ratio >= self.goal,
        }


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds of a step that are not the core's."""

    threads: int
    sequences: int
    overlap: bool
    step_us: float
    outside_us: float

    def as_json(self) -> dict[str, object]:
        return {
            "work": f"step of {self.sequences}, {self.threads} threads, overlap {'on' if self.overlap else 'off'}",
            "step_us": round(self.step_us, 1),
            "outside_core_us": round(self.outside_us, 1),
        }


# -- speed


def run(engine: Engine, text: Text, seed: int) -> tuple[tuple[int, ...], Usage]:
    time.sleep(PAUSE)
    first, never = MODELS[engine.info.name]
    turn = engine.generate(
        token_ids=engine.encode(first + text.prompt),
        max_tokens=TOKENS,
        temperature=text.temperature,
        top_p=0.95,
        seed=seed,
        logit_bias=dict.fromkeys(engine.encode(never), -100.0),
    ).wait()
    return turn.output_ids, turn.usage


def speedup(model: str, text: Text, plain: Engine, guessing: Engine, repeats: int) -> Speedup:
    """Each run has a seed of its own, the same on both sides. The first pair does not count."""
    pairs: list[tuple[Usage, Usage]] = []
    for seed in range(repeats + 1):
        said, without = run(plain, text, seed)
        said_guessing, with_guesses = run(guessing, text, seed)
        if said != said_guessing:
            raise RuntimeError(f"{text.name}: guesses have changed what is said")
        pairs.append((without, with_guesses))
    paces = [(float(one.tokens_per_s or 0), float(other.tokens_per_s or 0)) for one, other in pairs[1:]]
    ratios = [other / one for one, other in paces]
    drafted = [usage.drafted_tokens for _, usage in pairs[1:]]
    accepted = sum(usage.accepted_tokens for _, usage in pairs[1:])
    return Speedup(
        model,
        text,
        statistics.median(ratios),
        (min(ratios), max(ratios)),
        (statistics.median(one for one, _ in paces), statistics.median(other for _, other in paces)),
        accepted / sum(drafted) if sum(drafted) else None,
        int(statistics.median(drafted)),
    )


def speedups(models: tuple[str, ...], repeats: int) -> Iterator[Speedup]:
    for model in models:
        with ExitStack() as stack:
            plain, guessing = (
                stack.enter_context(Engine(model, context=2048, max_running=1, cache="none", seed=1, speculate=who))
                for who in ("off", "ngram")
            )
            for text in TEXTS:
                yield speedup(model, text, plain, guessing, repeats)


# -- overhead


def overhead(threads: int, sequences: int, overlap: bool) -> Overhead:
    """Decoding at `HISTORY` tokens and beyond, all sequences together."""
    options = EngineOptions(context=1024, pool_tokens=16 * 1024, max_running=16, threads=threads, overlap=overlap)
    world = World(cache_dir(), time.perf_counter, lambda form: form, seed=0, free_memory=None)
    prepared = prepare("smollm2", options, world, SilentProgress())
    backend = Timed(prepared.backend, lambda seconds, steps: None)
    parts = build_parts(prepared.model, options, prepared.size, backend, world.clock)
    for salt in range(sequences):
        prompt = [(position * 31 + salt) % 49_000 for position in range(HISTORY)]
        parts.service.submit(prompt, TurnParams(SAMPLING, STEPS + 100, ignore_eos=True))
    for _ in range(sequences * HISTORY // options.chunk + 50):  # past the prompts
        parts.service.step()
    outside, whole = [], []
    for _ in range(7):  # the core's time is taken over several steps: with overlap one is still running
        begun, seconds, steps = time.perf_counter(), backend.seconds, backend.steps
        for _ in range(STEPS // 10):
            parts.service.step()
        whole.append((time.perf_counter() - begun) / (STEPS // 10))
        outside.append(whole[-1] - (backend.seconds - seconds) / (backend.steps - steps))
    parts.service.shut_down()
    backend.close()
    return Overhead(threads, sequences, overlap, 1e6 * statistics.median(whole), 1e6 * statistics.median(outside))


def overheads() -> Iterator[Overhead]:
    for threads, sequences, overlap in product((1, 2), (1, 16), (False, True)):
        yield overhead(threads, sequences, overlap)


# -- told


def speed_table(rows: list[Speedup]) -> Table:
    shown = Table(title="n-gram guesses over none: medians of one interleaved run", title_justify="left")
    for heading in ("work", "model", "tok/s without", "with", "ratio", "range", "guesses", "stand", "goal"):
        shown.add_column(heading, justify="left" if heading in ("work", "model", "goal") else "right", no_wrap=True)
    for row in rows:
        verdict = "[green]met[/green]" if row.ratio >= row.goal else "[red]missed[/red]"
        shown.add_row(
            row.text.name,
            row.model,
            f"{row.tokens_per_s[0]:,.1f}",
            f"{row.tokens_per_s[1]:,.1f}",
            f"[bold]{row.ratio:.2f}[/bold]",
            f"[dim]{row.spread[0]:.2f} – {row.spread[1]:.2f}[/dim]",
            str(row.guessed),
            "" if row.acceptance is None else f"{row.acceptance:.0%}",
            f"{row.goal:g}: {verdict}",
        )
    return shown


def overhead_table(rows: list[Overhead]) -> Table:
    shown = Table(title="A step of SmolLM2 and what of it is not the core's", title_justify="left")
    for heading in ("threads", "sequences", "overlap", "step, us", "outside the core, us"):
        shown.add_column(heading, justify="right")
    for row in rows:
        cells = str(row.threads), str(row.sequences), "on" if row.overlap else "off"
        shown.add_row(*cells, f"{row.step_us:,.0f}", f"[bold]{row.outside_us:,.0f}[/bold]")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="Time guessing ahead, and steps with overlap off and on.")
    parser.add_argument("--only", choices=["speedup", "overhead"], help="one group of rows; writes nothing")
    parser.add_argument("--model", choices=list(MODELS), help="of the speedups; writes nothing")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"pairs of runs per row (default {REPEATS})")
    arguments = parser.parse_args()
    speeds: list[Speedup] = []
    costs: list[Overhead] = []
    console = Console()
    with console.status("") as status:
        if arguments.only != "overhead":
            for row in speedups((arguments.model,) if arguments.model else tuple(MODELS), arguments.repeats):
                speeds.append(row)
                status.update(f"{row.text.name}, {row.model}: {row.ratio:.2f}")
        if arguments.only != "speedup":
            for cost in overheads():
                costs.append(cost)
                status.update(f"a step of {cost.sequences} with {cost.threads} threads")
    if speeds:
        console.print(speed_table(speeds))
    if costs:
        console.print(overhead_table(costs))
    if arguments.only is None and arguments.model is None:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        entries = [row.as_json() for row in speeds] + [row.as_json() for row in costs]
        RESULTS.write_text(json.dumps(entries, indent=1) + "\n")
        console.print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
