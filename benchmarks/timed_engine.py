"""The served engine with its native steps timed: `python -m benchmarks.timed_engine FILE`, started like the engine's own process.

FILE is mapped: seconds in native steps so far and their number, for whoever reads it in another process.
"""

import mmap
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sojourn.app import engine_process
from sojourn.backends.protocol import Backend, Batch, BatchOutput

SHARED = struct.Struct("<dq")


class Timed:
    """Another back end; `told` gets the seconds of all steps, and how many there were."""

    def __init__(self, inner: Backend, told: Callable[[float, int], None]) -> None:
        self._inner = inner
        self._told = told
        self.vocab_size = inner.vocab_size
        self.seqs_max = inner.seqs_max
        self.seconds = 0.0
        self.steps = 0

    def step(self, batch: Batch) -> BatchOutput:
        begun = time.perf_counter()
        output = self._inner.step(batch)
        self.seconds += time.perf_counter() - begun
        self.steps += 1
        self._told(self.seconds, self.steps)
        return output

    def close(self) -> None:
        self._inner.close()


def open_shared(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), SHARED.size)


def main() -> int:
    shared = open_shared(Path(sys.argv[1]))
    prepare = engine_process.prepare

    def prepare_timed(*arguments, **options):  # type: ignore[no-untyped-def]
        prepared = prepare(*arguments, **options)
        timed = Timed(prepared.backend, lambda seconds, steps: SHARED.pack_into(shared, 0, seconds, steps))
        return replace(prepared, backend=timed)

    engine_process.prepare = prepare_timed
    return engine_process.main()


if __name__ == "__main__":
    sys.exit(main())
