"""What serving over HTTP costs: `python -m benchmarks.serving`, or `make bench-serving`. One interleaved run, some minutes.

path      a turn over HTTP and the same turn of an engine called in process, one and sixteen at a time: time to the first
          token, and tokens per second
turns     8 sessions over HTTP, 150 turns of 16 tokens in and 8 out, beside the same work called directly: time outside the
          native step as the history grows, and the native step itself
resend    a conversation held by a session, and the same one sent whole every time, with prefix cache and without

Both sides have the same engine on the same model with the same threads; they take turns, so that what disturbs one
disturbs the other.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Protocol

from benchmarks.bookkeeping import Figure, figure, table, write
from benchmarks.served import Connection, Json, Served
from benchmarks.timed_engine import Timed
from rich.console import Console

from sojourn import Engine
from sojourn.api.options import TurnKeywords
from sojourn.app.build import World, build_parts, prepare
from sojourn.app.config import EngineOptions, cache_dir
from sojourn.core.step import SamplingParams
from sojourn.models.progress import SilentProgress
from sojourn.sessions.service import SessionService, TurnParams

RESULTS = Path(__file__).parent / "results" / "serving.json"
MODEL = "smollm2"
VOCAB = 49_000
AT_ONCE = 16
HISTORY, NEW, OUT = 256, 16, 64
PAUSE_S = 0.05  # the other side's compute threads stop looking for work
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "ignore_eos": True}


def words(rng: Random, count: int) -> list[int]:
    return [rng.randrange(1000, VOCAB) for _ in range(count)]


# -- path


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one turn from its call."""

    first: float
    whole: float


class Voice(Protocol):
    """A conversation on either side."""

    def say(self, ids: list[int], count: int) -> Timing: ...

    def close(self) -> None: ...


class HttpVoice:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._path = f"/v1/sessions/{connection.ask('POST', '/v1/sessions', {})['id']}"

    def say(self, ids: list[int], count: int) -> Timing:
        begun = time.perf_counter()
        first = 0.0
        for event in self._connection.stream(
            f"{self._path}/turns", {**SAMPLING, "token_ids": ids, "max_tokens": count}
        ):
            if not first and event["type"] == "delta":
                first = time.perf_counter() - begun
        return Timing(first, time.perf_counter() - begun)

    def close(self) -> None:
        self._connection.ask("DELETE", self._path)


class DirectVoice:
    def __init__(self, engine: Engine) -> None:
        self._session = engine.open_session()

    def say(self, ids: list[int], count: int) -> Timing:
        options: TurnKeywords = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "ignore_eos": True}
        begun = time.perf_counter()
        first = 0.0
        for _ in self._session.turn(token_ids=ids, max_tokens=count, **options):
            first = first or time.perf_counter() - begun
        return Timing(first, time.perf_counter() - begun)

    def close(self) -> None:
        self._session.close()


def together(voices: Sequence[Voice], prompts: list[list[int]], count: int) -> tuple[list[Timing], float]:
    """Each voice its turn, all at the same time: their timings, and the seconds until the last had ended."""
    barrier = Barrier(len(voices) + 1)

    def speak(voice: Voice, ids: list[int]) -> Timing:
        barrier.wait()
        return voice.say(ids, count)

    with ThreadPoolExecutor(len(voices)) as pool:
        futures = [pool.submit(speak, voice, ids) for voice, ids in zip(voices, prompts, strict=True)]
        barrier.wait()
        begun = time.perf_counter()
        timings = [future.result() for future in futures]
        return timings, time.perf_counter() - begun


def path(served: Served, engine: Engine, rounds: dict[int, int]) -> Iterator[Figure]:
    connections = [Connection(served.port) for _ in range(AT_ONCE)]
    for at_once, repeats in rounds.items():
        makers: dict[str, Callable[[int], Voice]] = {
            "HTTP": lambda number: HttpVoice(connections[number]),
            "direct": lambda _: DirectVoice(engine),
        }
        firsts: dict[str, list[float]] = {side: [] for side in makers}
        speeds: dict[str, list[float]] = {side: [] for side in makers}
        lasts: dict[str, list[float]] = {side: [] for side in makers}  # when each of those at once has its first token
        for repeat in range(repeats):
            rng = Random(repeat)
            before = [words(rng, HISTORY) for _ in range(at_once)]
            new = [words(rng, NEW) for _ in range(at_once)]
            sides = list(makers.items())
            for side, make in sides if repeat % 2 else reversed(sides):
                voices = [make(number) for number in range(at_once)]
                together(voices, before, 1)
                time.sleep(PAUSE_S)
                timings, whole = together(voices, new, OUT)
                firsts[side] += [1e3 * timing.first for timing in timings]
                lasts[side].append(1e3 * max(timing.first for timing in timings))
                speeds[side].append(at_once * OUT / whole)
                for voice in voices:
                    voice.close()
        for side in makers:
            yield figure(f"first token, {side}, {at_once} at once", "ms", firsts[side])
            yield figure(f"tokens, {side}, {at_once} at once", "tok/s", speeds[side])
        first = {side: statistics.median(values) for side, values in firsts.items()}
        speed = {side: statistics.median(values) for side, values in speeds.items()}
        yield Figure(f"first token: added by HTTP, {at_once} at once", "ms", first["HTTP"] - first["direct"], goal=3.0)
        if at_once > 1:  # the median hangs on which step a prompt falls into; when all have begun does not
            last = {side: statistics.median(values) for side, values in lasts.items()}
            yield Figure(
                f"until all {at_once} have a token: added by HTTP", "ms", last["HTTP"] - last["direct"], goal=3.0
            )
        added = 1e6 * at_once * (1 / speed["HTTP"] - 1 / speed["direct"])
        yield Figure(f"each token: added by HTTP, {at_once} at once", "us", added)
        lost = 100 * (1 - speed["HTTP"] / speed["direct"])
        yield Figure(f"throughput lost to HTTP, {at_once} at once", "%", lost, goal=5.0)
    for connection in connections:
        connection.close()


# -- turns


class Direct:
    """The sessions of an engine without threads: called, it runs to the end."""

    def __init__(self, options: EngineOptions) -> None:
        world = World(cache_dir(), time.perf_counter, lambda form: form, seed=0, free_memory=None)
        prepared = prepare(MODEL, options, world, SilentProgress())
        self._backend = Timed(prepared.backend, lambda seconds, steps: None)
        self._service: SessionService = build_parts(
            prepared.model, options, prepared.size, self._backend, world.clock
        ).service
        self._ids: list[str] = []

    def open(self, count: int) -> None:
        self._ids = [self._service.open() for _ in range(count)]

    def round(self, prompts: list[list[int]], count: int) -> float:
        """Seconds in native steps."""
        begun = self._backend.seconds
        params = TurnParams(SamplingParams(temperature=0.8, top_k=40, top_p=0.95), count, ignore_eos=True)
        for name, ids in zip(self._ids, prompts, strict=True):
            self._service.start_turn(name, ids, params)
        while self._service.has_work:
            self._service.step()
        return self._backend.seconds - begun

    def close(self) -> None:
        self._backend.close()


def turns(served: Served, direct: Direct, sessions: int = 8, number: int = 150) -> Iterator[Figure]:
    connections = [Connection(served.port) for _ in range(sessions)]
    voices = [HttpVoice(connection) for connection in connections]
    direct.open(sessions)
    rng = Random(21)
    outside, native, alone = [], [], []
    for _ in range(number):
        prompts = [words(rng, 16) for _ in voices]
        begun = served.native_seconds
        _, whole = together(voices, prompts, 8)
        inside = served.native_seconds - begun
        outside.append(1e3 * (whole - inside))
        native.append(1e3 * inside)
        alone.append(1e3 * direct.round(prompts, 8))
    for voice, connection in zip(voices, connections, strict=True):
        voice.close()
        connection.close()
    yield figure("8 turns of 16 in, 8 out: outside the native step, first ten", "ms", outside[:10])
    yield figure("8 turns of 16 in, 8 out: outside the native step, last ten of 150", "ms", outside[-10:])
    ratio = statistics.median(outside[-10:]) / statistics.median(outside[:10])
    yield Figure("outside the native step, last ten over first ten", "ratio", ratio, goal=1.15)
    yield figure("native steps of such a round, last ten", "ms", native[-10:])
    ratio = statistics.median(native[-10:]) / statistics.median(alone[-10:])
    yield Figure("the same over the same called directly", "ratio", ratio, goal=1.1)


# -- resend


@dataclass(slots=True)
class Conversation:
    """One way to hold the conversation: `ask` gives the events of the next turn, given what was said and what is new."""

    name: str
    ask: Callable[[list[int], list[int], int], Iterator[Json]]
    firsts: list[float]
    computed: int = 0


def resend(served: Served, number: int = 16, new: int = 100, out: int = 16, conversations: int = 2) -> Iterator[Figure]:
    """The same token ids each way; what a session has sampled is what the others send back."""
    connection = Connection(served.port)
    whole_body = {**SAMPLING, "model": MODEL, "max_tokens": out, "stream_options": {"include_usage": True}}
    path = ""

    def by_session(said: list[int], ids: list[int], _: int) -> Iterator[Json]:
        return connection.stream(path, {**SAMPLING, "token_ids": ids, "max_tokens": out})

    def whole(salt: str) -> Callable[[list[int], list[int], int], Iterator[Json]]:
        def ask(said: list[int], ids: list[int], turn: int) -> Iterator[Json]:
            body = {**whole_body, "prompt": [*said, *ids], "cache_salt": salt.format(path, turn)}
            return connection.stream("/v1/completions", body)

        return ask

    ways = [
        Conversation("a session", by_session, []),
        Conversation("resent, prefix cache", whole("{0}"), []),
        Conversation("resent, no prefix cache", whole("{0} {1}"), []),
    ]
    for salt in range(conversations):
        rng = Random(salt)
        session = connection.ask("POST", "/v1/sessions", {})["id"]
        path = f"/v1/sessions/{session}/turns"
        said: list[int] = []
        for turn in range(number):
            ids, answer = words(rng, new), list[int]()
            for way in ways:
                time.sleep(PAUSE_S)
                begun = time.perf_counter()
                first, usage = 0.0, {}
                for event in way.ask(said, ids, turn):
                    is_token = event.get("type") == "delta" or bool(event.get("choices"))
                    if not first and is_token:
                        first = time.perf_counter() - begun
                    usage = event.get("usage") or usage
                    answer = event.get("token_ids", answer) if event.get("type") == "turn.ended" else answer
                if turn == number - 1:
                    way.firsts.append(1e3 * first)
                details = usage.get("prompt_tokens_details") or usage
                way.computed += usage["prompt_tokens"] - details["cached_tokens"]
            said = [*said, *ids, *answer]
        connection.ask("DELETE", f"/v1/sessions/{session}")
    connection.close()
    for way in ways:
        yield figure(
            f"first token of turn {number} ({number * (new + out) - out:,} tokens), {way.name}", "ms", way.firsts
        )
        yield Figure(f"prompt tokens computed in {number} turns, {way.name}", "tokens", way.computed / conversations)


def figures(names: tuple[str, ...], threads: int) -> Iterator[Figure]:
    options = EngineOptions(
        context=4096, pool_tokens=40_960, max_running=AT_ONCE, chunk=512, threads=threads, strict_mem_check=0, seed=1
    )
    served = Served(MODEL, options)
    try:
        if "path" in names:
            with Engine(
                MODEL, context=4096, pool_tokens=40_960, max_running=AT_ONCE, chunk=512, threads=threads, seed=1
            ) as engine:
                yield from path(served, engine, {1: 12, AT_ONCE: 4})
        if "resend" in names:
            yield from resend(served)
        if "turns" in names:
            direct = Direct(options)
            yield from turns(served, direct)
            direct.close()
    finally:
        served.close()


def main() -> None:
    names = ("path", "turns", "resend")
    parser = argparse.ArgumentParser(description="Time what serving over HTTP costs.")
    parser.add_argument("--only", choices=names, help="one group of rows; writes nothing")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each engine")
    arguments = parser.parse_args()
    rows = []
    console = Console()
    with console.status("") as status:
        for row in figures(names if arguments.only is None else (arguments.only,), arguments.threads):
            rows.append(row)
            status.update(row.work)
    title = f"Serving: medians of one run, quartiles beside them; {arguments.threads} compute thread(s) on each side"
    console.print(table(rows, title))
    if arguments.only is None:
        write(RESULTS, rows)
        console.print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
