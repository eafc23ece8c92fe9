"""What a burst of cold conversations costs those in use: `python -m benchmarks.pressure`. One interleaved run, minutes.

Two servers take turns, on the same model with the same traffic. In one the pool has room for every conversation, in the
other for a third of what they come to. 12 hot conversations have a turn again and again; at the start of a round 25
cold ones come back at once. What is told is the time to the first token of the hot turns, in the small
pool over the large one (the goal is at most 2), and how many of them resumed on KV of their own.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from benchmarks.served import Connection, Json, Served
from rich.console import Console
from rich.table import Table

from sojourn.app.config import EngineOptions

VOCAB = 49_000
HOT, COLD = 12, 25
HOT_TOKENS, COLD_TOKENS, NEW, OUT = 192, 400, 16, 8
ROOMY, TIGHT = 24_576, 4_608
THINK_S = 0.6
ROUND_S = 15.0  # at least
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@dataclass(slots=True)
class Measured:
    """Seconds to the first token of hot turns, and where their history came from."""

    first_s: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    burst_s: float = 0.0

    def resumed(self) -> float:
        return self.sources.count("session") / max(1, len(self.sources))


class Talk:
    """One conversation, by a connection of its own."""

    def __init__(self, port: int, seed: int, length: int) -> None:
        self._rng = Random(seed)
        self._connection = Connection(port)
        self._path = f"/v1/sessions/{self._connection.ask('POST', '/v1/sessions', {})['id']}/turns"
        self.say(length)

    def say(self, count: int = NEW) -> tuple[float, str]:
        ids = [self._rng.randrange(1000, VOCAB) for _ in range(count)]
        begun, first = time.perf_counter(), 0.0
        ended: Json = {}
        for event in self._connection.stream(self._path, {**GREEDY, "token_ids": ids, "max_tokens": OUT}):
            if not first and event["type"] == "delta":
                first = time.perf_counter() - begun
            if event["type"] == "turn.ended":
                ended = event
        return first, str(ended["cache"]["source"])

    def think(self) -> float:
        return self._rng.uniform(0.5, 1.5) * THINK_S

    def close(self) -> None:
        self._connection.close()


class Side:
    """A server, its conversations, and what was measured."""

    def __init__(self, model: str, options: EngineOptions) -> None:
        self.measured = Measured()
        self._served = Served(model, options)
        self._cold = [Talk(self._served.port, seed, COLD_TOKENS) for seed in range(COLD)]
        self._hot = [Talk(self._served.port, COLD + seed, HOT_TOKENS) for seed in range(HOT)]
        for talk in self._hot:
            talk.say()

    def round(self) -> None:
        """The hot speak for a while, and until the burst of the cold is over."""
        over, lock = threading.Event(), threading.Lock()

        def speak(talk: Talk) -> None:
            while not over.wait(talk.think()):
                first_s, source = talk.say()
                with lock:
                    self.measured.first_s.append(first_s)
                    self.measured.sources.append(source)

        hot = [threading.Thread(target=speak, args=(talk,)) for talk in self._hot]
        cold = [threading.Thread(target=talk.say) for talk in self._cold]
        begun = time.perf_counter()
        for thread in (*hot, *cold):
            thread.start()
        for thread in cold:
            thread.join()
        self.measured.burst_s += time.perf_counter() - begun
        over.wait(max(0.0, ROUND_S - (time.perf_counter() - begun)))  # so a burst that is short is not all there is
        over.set()
        for thread in hot:
            thread.join()

    def close(self) -> None:
        for talk in (*self._hot, *self._cold):
            talk.close()
        self._served.close()


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def show(roomy: Measured, tight: Measured) -> None:
    table = Table(title=f"{HOT} hot and {COLD} cold conversations", title_justify="left")
    for heading in ("hot turns", "room for all", "room for a third", "ratio"):
        table.add_column(heading, justify="right" if heading != "hot turns" else "left")
    for name, share in (("first token, median, ms", 0.5), ("first token, 90 of 100, ms", 0.9)):
        one, other = percentile(roomy.first_s, share), percentile(tight.first_s, share)
        table.add_row(name, f"{1000 * one:.1f}", f"{1000 * other:.1f}", f"{other / one:.2f}")
    table.add_row("resumed on their own KV", f"{roomy.resumed():.0%}", f"{tight.resumed():.0%}", "")
    table.add_row("turns", str(len(roomy.first_s)), str(len(tight.first_s)), "")
    table.add_row("bursts took, s", f"{roomy.burst_s:.1f}", f"{tight.burst_s:.1f}", "")
    Console().print(table)
    ratio = statistics.median(tight.first_s) / statistics.median(roomy.first_s)
    print(f"hot TTFT under pressure over no pressure: {ratio:.2f} (goal: at most 2)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pressure")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=32, help="most tokens of one prompt in one step")
    asked = parser.parse_args()
    sides: list[Side] = []
    try:
        for pool in (ROOMY, TIGHT):
            options = EngineOptions(context=2048, pool_tokens=pool, max_running=HOT + COLD, chunk=asked.chunk)
            sides.append(Side(asked.model, options))
        for _ in range(asked.rounds):
            for side in sides:
                side.round()
        show(sides[0].measured, sides[1].measured)
    finally:
        for side in sides:
            side.close()


if __name__ == "__main__":
    main()
