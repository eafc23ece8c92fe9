"""How long steps take and how many tokens they compute, by phase: counts in buckets, ready for a histogram.

A step is a prefill where it only computes prompts, a decode where every work is one token (and its drafts), else mixed.
Owns the counts; reads no clock.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.core.step import StepPlan, Work

SECONDS = tuple(0.0005 * 2**k for k in range(16))  # to 16.4
TOKENS = tuple(float(2**k) for k in range(14))  # to 8,192
PHASES = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` values were at most `bounds[i]` and above the bound before; the last one counts those above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """Since the start."""

    phase: str
    seconds: Histogram
    tokens: Histogram


class Buckets:
    """Counts values; their bounds rise."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def histogram(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total)


class StepMeter:
    """Told each step when it is settled; with steps that overlap, a step's seconds begin when the one before ended."""

    def __init__(self) -> None:
        self._by_phase = {phase: (Buckets(SECONDS), Buckets(TOKENS)) for phase in PHASES}

    def count(self, plan: StepPlan, num_rows: int, seconds: float) -> None:
        seconds_of, tokens_of = self._by_phase[phase_of(plan.work)]
        seconds_of.observe(seconds)
        tokens_of.observe(num_rows)

    def statistics(self) -> tuple[StepStatistics, ...]:
        return tuple(
            StepStatistics(phase, seconds.histogram(), tokens.histogram())
            for phase, (seconds, tokens) in self._by_phase.items()
        )


def phase_of(works: Sequence[Work]) -> str:
    """A single token is a decode, also the last one of a prompt, which costs the same; none is one that runs ahead."""
    decodes = 0
    for work in works:
        decodes += len(work.tokens) <= 1
    if decodes == len(works):
        return "decode"
    return "mixed" if decodes else "prefill"
