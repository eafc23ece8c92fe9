"""What a step costs beside the device: `python -m benchmarks.scheduling`. Microseconds, medians; no model.

`decode`: plan, inputs, samples, settle and events for 1, 4 and 16 sequences, census off (goals: 120 for 1, 500 for 16).
`turn`: one turn of a session (start, 32 new tokens, 32 generated, parked) at several lengths of history.
"""

import itertools
import statistics
import time

import numpy as np

from sojourn.backends.protocol import Batch, BatchOutput
from sojourn.cache.radix import RadixCache
from sojourn.engine.loop import EngineLoop
from sojourn.pages.holding import HoldingBook
from sojourn.pages.sizing import PoolLayout
from sojourn.runner.runner import Runner
from sojourn.scheduler.scheduler import Scheduler, SchedulerConfig
from sojourn.sessions.service import ServiceConfig, SessionService, TurnParams
from sojourn.sessions.slots import SessionAwareCache

SEQS_MAX = 16
CONTEXT = 160_000
VOCAB_SIZE = 50_000


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


def service(window: int) -> SessionService:
    layout = PoolLayout(page_size=16, window=window)
    cache = SessionAwareCache(RadixCache(HoldingBook(layout, [2 * CONTEXT // 16] * layout.num_pools)))
    config = SchedulerConfig(CONTEXT, SEQS_MAX, step_tokens_max=1024 + SEQS_MAX, chunk_tokens_max=1024)
    loop = EngineLoop(Scheduler(cache, config, time.perf_counter), Runner(Nowhere()), cache, time.perf_counter)
    ids = itertools.count()
    return SessionService(
        loop, cache, ServiceConfig(VOCAB_SIZE, CONTEXT), clock=time.perf_counter, new_id=lambda: str(next(ids))
    )


def run(sessions: SessionService) -> None:
    while sessions.has_work:
        sessions.step()


def decode(window: int, sequences: int, steps: int = 2000) -> float:
    sessions = service(window)
    for salt in range(sequences):
        sessions.submit([salt] * 500, TurnParams(max_new_tokens=steps + 200))
    for _ in range(100):
        sessions.step()
    times = []
    for _ in range(steps):
        begun = time.perf_counter()
        sessions.step()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def turn(window: int, history: int, turns: int = 40) -> float:
    sessions = service(window)
    session_id = sessions.open()
    sessions.start_turn(
        session_id, [position % VOCAB_SIZE for position in range(history)], TurnParams(max_new_tokens=1)
    )
    run(sessions)
    times = []
    for number in range(turns):
        new = [number] * 32
        begun = time.perf_counter()
        sessions.start_turn(session_id, new, TurnParams(max_new_tokens=32))
        run(sessions)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def main() -> None:
    for window in (0, 512):
        kind = f"window {window}" if window else "full attention"
        for sequences in (1, 4, 16):
            print(f"decode  {kind:15} {sequences:7} sequences      {decode(window, sequences):8.1f} us a step")
        for history in (1_000, 10_000, 100_000):
            print(f"turn    {kind:15} {history:7} tokens before  {turn(window, history):8.1f} us")


if __name__ == "__main__":
    main()
