"""A caller of the soak whose turns are all alike, so that their times can be compared: a few new tokens, a few told."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.load.asking import Asking, Json
from tests.load.caller import Sizes, check

NEW = 8
TOLD = 4
TURNS = 12  # of one session; then another one


@dataclass(slots=True)
class Times:
    """(when a turn was asked for, seconds) of all probes, oldest first as they were asked for."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def quarters(self) -> list[list[float]]:
        """Of the time after the first third, which is the warm-up."""
        if not self.samples:
            return [[], [], [], []]
        first, last = min(at for at, _ in self.samples), max(at for at, _ in self.samples)
        begin = first + (last - first) / 3
        quarter = (last - begin) / 4
        return [
            [seconds for at, seconds in self.samples if low <= at < low + quarter]
            for low in (begin + number * quarter for number in range(4))
        ]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Probe:
    def __init__(self, number: int, seed: int, asking: Asking, sizes: Sizes, first: Times, whole: Times) -> None:
        self._rng = Random(seed * 1000 + number)
        self._asking = asking
        self._sizes = sizes
        self._first = first
        self._whole = whole

    async def run(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            name = (await self._asking.post("/v1/sessions", {}))["id"]
            for number in range(TURNS):
                if goes_on():
                    await self._turn(name, number)
            await self._asking.delete(f"/v1/sessions/{name}")

    async def _turn(self, name: str, number: int) -> None:
        tokens = [self._rng.randrange(3, self._sizes.vocab - 2) for _ in range(NEW)]
        sampling = {"max_tokens": TOLD, "ignore_eos": True, "temperature": 0.0}
        body: Json = {"token_ids": tokens, **sampling, "stream": True, "turn": number}
        began, first = time.monotonic(), 0.0
        async with self._asking.stream(f"/v1/sessions/{name}/turns", body) as events:
            async for event in events:
                if not first and event.get("token_ids"):
                    first = time.monotonic()
                last = event
        self._first.samples.append((began, first - began))
        self._whole.samples.append((began, time.monotonic() - began))
        check(len(last["token_ids"]) == TOLD and last["turn"] == number, "a probe's turn", last)
        check(last["usage"]["total_tokens"] == (number + 1) * (NEW + TOLD), "a probe's turn", last)
        self._asking.done["probe"] += 1
