"""Speed of the core alone, through the back end: `python -m benchmarks.native_step MODEL [--threads N] [--only ROW ...]`.

No engine and no peer (benchmarks/step.py has both): this is for working on the kernels. Medians of several runs.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import Batch, SamplingBatch
from sojourn.models import loading
from sojourn.models.packed import PackedModel

PAGE = 16
ROOM = 8448  # positions per sequence at most
SEQS = 16


def nucleus(rows: int) -> SamplingBatch:
    def full(value: float, dtype: type = np.float32) -> np.ndarray:
        return np.full(rows, value, dtype=dtype)

    nothing = np.zeros(rows + 1, dtype=np.int64)
    empty = np.zeros(0, dtype=np.int32)
    return SamplingBatch(
        temperature=full(0.8),
        top_k=full(0, np.int32),
        top_p=full(0.95),
        min_p=full(0),
        repetition_penalty=full(1),
        presence_penalty=full(0),
        frequency_penalty=full(0),
        seeds=full(1, np.uint64),
        positions=np.arange(rows, dtype=np.int64),
        bias_offsets=nothing,
        bias_ids=empty,
        bias_values=np.zeros(0, dtype=np.float32),
        history_offsets=nothing,
        history=empty,
        history_prompt=full(0, np.int32),
        num_logprobs=-1,
    )


class Bench:
    """A back end whose sequences own fixed pages."""

    def __init__(self, model: PackedModel, threads: int, instruction_set: str) -> None:
        pages = ROOM // PAGE + (SEQS - 1) * 2048 // PAGE + 1
        self._native = NativeBackend(
            model,
            page_size=PAGE,
            num_pages=(pages, pages),
            kv_dtype="f16",
            threads=threads,
            seqs_max=SEQS,
            instruction_set=instruction_set,  # type: ignore[arg-type]
        )
        self._vocab = model.config.vocab_size
        self._edits = []
        page = 1
        for seq in range(SEQS):
            count = (ROOM if seq == 0 else 2048) // PAGE
            self._edits += [(seq, pool, i, page + i) for pool in (0, 1) for i in range(count)]
            page += count

    def step(self, parts: Sequence[tuple[int, int, int]]) -> float:
        """Seconds of a step of (sequence, start, length) parts, one sampled row each."""
        lengths = np.array([length for _, _, length in parts], dtype=np.int32)
        batch = Batch(
            tokens=np.random.default_rng(1).integers(0, self._vocab, lengths.sum(), dtype=np.int32),
            seqs=np.array([seq for seq, _, _ in parts], dtype=np.int32),
            starts=np.array([start for _, start, _ in parts], dtype=np.int32),
            lengths=lengths,
            table_edits=np.array(self._edits, dtype=np.int32).reshape(-1, 4),
            logit_rows=(np.cumsum(lengths) - 1).astype(np.int32),
            sampling=nucleus(len(parts)),
        )
        self._edits = []
        begin = time.perf_counter()
        self._native.step(batch)
        return time.perf_counter() - begin

    def fill(self, length: int) -> None:
        for start in range(0, length, 512):
            self.step([(0, start, min(512, length - start))])

    def median(self, parts: Sequence[tuple[int, int, int]], runs: int) -> float:
        self.step(parts)
        return statistics.median(self.step(parts) for _ in range(runs))


def rows_of(bench: Bench, context: int) -> dict[str, Callable[[], str]]:
    def decode(length: int) -> Callable[[], str]:
        return lambda: f"{1 / bench.median([(0, length, 1)], 30):8.1f} tok/s"

    def append(length: int) -> Callable[[], str]:
        return lambda: f"{1e3 * bench.median([(0, length, 32)], 7):8.1f} ms"

    def batch(seqs: int) -> Callable[[], str]:
        return lambda: f"{seqs / bench.median([(s, 512, 1) for s in range(seqs)], 15):8.1f} tok/s"

    rows: dict[str, Callable[[], str]] = {}
    rows["prefill-512"] = lambda: f"{512 / bench.median([(0, 0, 512)], 5):8.1f} tok/s"
    lengths = [length for length in (512, 2048, 8000) if length + 32 <= context]
    rows |= {f"decode-{length}": decode(length) for length in lengths}
    rows |= {f"batch-{seqs}": batch(seqs) for seqs in (4, 16)}
    rows |= {f"append-32-at-{length}": append(length) for length in lengths}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--instruction-set", default="auto")
    parser.add_argument("--cache", type=Path, default=Path("build/bench-models"))
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    model = loading.load(arguments.model, cache_dir=arguments.cache).packed
    bench = Bench(model, arguments.threads, arguments.instruction_set)
    rows = rows_of(bench, min(model.config.context_length, ROOM))
    wanted = [name for name in rows if not arguments.only or name in arguments.only]
    bench.fill(8000 if any("8000" in name for name in wanted) else 2048)
    for seq in range(1, SEQS):
        bench.step([(seq, 0, 512)])
    for name in wanted:
        print(f"{name:20s} {rows[name]()}", flush=True)


if __name__ == "__main__":
    main()
