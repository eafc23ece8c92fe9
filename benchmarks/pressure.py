"""What cold conversations that come back cost the hot ones: `python -m benchmarks.pressure`. One interleaved run, minutes.

12 hot conversations have a turn of few tokens again and again, thinking about two seconds in between; each turn is drawn
from a seed, so they come at the same pace on each side. 25 cold conversations, whose histories take 64 steps and more, come
back all at once. All histories together are three times the pool at the end of the run; those of the hot ones are three
quarters of it. Three sides take turns, two servers with the same model:

    calm       the small pool, only the hot ones speak, before and after each burst (it is full of what the cold ones left)
    pressure   the small pool, and the cold ones come back: next to nothing of theirs is left, all is computed again
    room       the cold ones come back, too, and the pool has room for everybody

Of the pressure only hot turns count that begin while a cold one waits for its answer. A hot turn's time is from before its
request is sent to its first token. Each conversation has a connection and a thread of its own and one turn at a time, so
nobody waits at the client's; a conversation that is answered later does speak later. The goal is pressure at most twice calm.
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
NEW, OUT = 8, 4  # tokens of a turn, and of its answer
HOT_TOKENS, COLD_TOKENS = 128, 830
TURNS = 12  # of each hot conversation in a round, at most
ROOMY, TIGHT = 36_864, 9_216
THINK_S = 2.0
GREEDY = {"temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Turn:
    """Milliseconds to the first token as the client has them; where its history was; its place in the server's log."""

    first_ms: float
    source: str
    place: tuple[str, int]


@dataclass(slots=True)
class Measured:
    """Hot turns of one side."""

    turns: list[Turn] = field(default_factory=list)
    cold: list[Turn] = field(default_factory=list)
    burst_s: float = 0.0
    queue_ms: list[float] = field(default_factory=list)  # of `turns`, from being queued to being admitted
    retractions: int = 0

    def resumed(self) -> float:
        return sum(turn.source == "session" for turn in self.turns) / max(1, len(self.turns))


class Talk:
    """One conversation, by a connection of its own."""

    def __init__(self, port: int, seed: int, length: int) -> None:
        self._rng = Random(seed)
        self._connection = Connection(port)
        self._id = str(self._connection.ask("POST", "/v1/sessions", {})["id"])
        self._count = 0
        self.say(length)

    def say(self, count: int = NEW) -> Turn:
        ids = [self._rng.randrange(1000, VOCAB) for _ in range(count)]
        body = {**GREEDY, "token_ids": ids, "max_tokens": OUT}
        begun, first = time.perf_counter(), 0.0
        ended: Json = {}
        for event in self._connection.stream(f"/v1/sessions/{self._id}/turns", body):
            if not first and event["type"] == "delta":
                first = time.perf_counter() - begun
            if event["type"] == "turn.ended":
                ended = event
        self._count += 1
        return Turn(1000 * first, str(ended["cache"]["source"]), (self._id, self._count - 1))

    def think(self) -> float:
        return self._rng.uniform(0.5, 1.5) * THINK_S

    def close(self) -> None:
        self._connection.close()


class Side:
    """A server and its conversations."""

    def __init__(self, model: str, options: EngineOptions) -> None:
        self._served = Served(model, options)
        self._cold = [Talk(self._served.port, seed, COLD_TOKENS) for seed in range(COLD)]
        self._hot = [Talk(self._served.port, COLD + seed, HOT_TOKENS) for seed in range(HOT)]
        for talk in self._hot:
            talk.say()

    def calm(self, measured: Measured, turns: int = TURNS // 3) -> None:
        """Only the hot speak."""
        self._round(measured, turns, [], threading.Event())

    def burst(self, measured: Measured, *, until_over: bool) -> None:
        """The cold come back. `until_over`: what is begun when they are all answered does not count."""
        over, lock = threading.Event(), threading.Lock()
        left = len(self._cold)
        begun = time.perf_counter()

        def come_back(talk: Talk) -> None:
            nonlocal left
            turn = talk.say()
            with lock:
                measured.cold.append(turn)
                left -= 1
                if not left:
                    measured.burst_s += time.perf_counter() - begun
                    if until_over:
                        over.set()

        self._round(measured, TURNS, [threading.Thread(target=come_back, args=(talk,)) for talk in self._cold], over)

    def _round(self, measured: Measured, turns: int, cold: list[threading.Thread], over: threading.Event) -> None:
        lock = threading.Lock()

        def speak(talk: Talk) -> None:
            for _ in range(turns):
                if over.wait(talk.think()):
                    return
                turn = talk.say()
                with lock:
                    measured.turns.append(turn)

        threads = [*(threading.Thread(target=speak, args=(talk,)) for talk in self._hot), *cold]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def look_up(self, measured: Measured) -> None:
        """What the server's log says of the turns."""
        said: dict[str, list[dict[str, str]]] = {}
        for line in self._served.log().splitlines():
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "queue_ms" in fields:
                said.setdefault(fields["session"], []).append(fields)
        for turn in measured.turns:
            name, number = turn.place
            measured.queue_ms.append(float(said[name][number]["queue_ms"]))
            measured.retractions += int(said[name][number]["retractions"])

    def close(self) -> None:
        for talk in (*self._hot, *self._cold):
            talk.close()
        self._served.close()


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def show(sides: dict[str, Measured]) -> None:
    table = Table(title=f"{HOT} hot and {COLD} cold conversations", title_justify="left")
    table.add_column("hot turns")
    for name in sides:
        table.add_column(name, justify="right")
    for name, share in (("median", 0.5), ("90 of 100", 0.9)):
        firsts = (percentile([turn.first_ms for turn in side.turns], share) for side in sides.values())
        table.add_row(f"first token, {name}, ms", *(f"{first:.1f}" for first in firsts))
        queues = (percentile(side.queue_ms, share) for side in sides.values())
        table.add_row(f"of that in line, {name}, ms", *(f"{queue:.1f}" for queue in queues))
    table.add_row("resumed on their own KV", *(f"{side.resumed():.0%}" for side in sides.values()))
    table.add_row("turns", *(str(len(side.turns)) for side in sides.values()))
    table.add_row("retractions", *(str(side.retractions) for side in sides.values()))
    colds = (statistics.median([turn.first_ms for turn in side.cold] or [0.0]) for side in sides.values())
    table.add_row("cold turns: first token, median, ms", *(f"{first:.0f}" for first in colds))
    table.add_row("bursts took, s", *(f"{side.burst_s:.1f}" for side in sides.values()))
    Console().print(table)
    calm, pressure = (statistics.median([turn.first_ms for turn in sides[name].turns]) for name in ("calm", "pressure"))
    print(f"hot TTFT under pressure over no pressure: {pressure / calm:.2f} (goal: at most 2)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pressure")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=512, help="most tokens of one prompt in one step")
    asked = parser.parse_args()
    sides: list[Side] = []
    measured = {name: Measured() for name in ("calm", "pressure", "room")}
    try:
        for pool in (TIGHT, ROOMY):
            options = EngineOptions(context=2048, pool_tokens=pool, max_running=HOT + COLD, chunk=asked.chunk)
            sides.append(Side(asked.model, options))
        tight, roomy = sides
        for _ in range(asked.rounds):
            tight.calm(measured["calm"])
            tight.burst(measured["pressure"], until_over=True)
            tight.calm(measured["calm"])
            roomy.burst(measured["room"], until_over=False)
        for name, side in (("calm", tight), ("pressure", tight), ("room", roomy)):
            side.look_up(measured[name])
        show(measured)
    finally:
        for side in sides:
            side.close()


if __name__ == "__main__":
    main()
