"""Drives a back end directly: one sequence on consecutive pages, no scheduler and no cache."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import F32, Backend, Batch
from sojourn.backends.reference import ReferenceBackend
from sojourn.core.step import MODEL_POOLS
from sojourn.models.packed import PackedModel

PAGE_SIZE = 16
MakeBackend = Callable[[PackedModel, int], Backend]  # the model, and the longest sequence it must hold


def _num_pages(length: int) -> tuple[int, int]:
    pages = 1 + -(-length // PAGE_SIZE)  # the null page first
    return pages, pages


def reference(model: PackedModel, length: int) -> Backend:
    return ReferenceBackend(model, page_size=PAGE_SIZE, num_pages=_num_pages(length), seqs_max=1)


def native_exact(model: PackedModel, length: int) -> Backend:
    """f32 KV; exact where the weights are f32 too."""
    pages = _num_pages(length)
    return NativeBackend(model, page_size=PAGE_SIZE, num_pages=pages, kv_dtype="f32", threads=2, seqs_max=1)


def native_fast(model: PackedModel, length: int) -> Backend:
    pages = _num_pages(length)
    return NativeBackend(model, page_size=PAGE_SIZE, num_pages=pages, kv_dtype="f16", threads=2, seqs_max=1)


class Driver:
    """One sequence of a back end; every call appends to what is there. `length` tokens have their KV."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._pages = 0
        self.length = 0

    def append(self, tokens: Sequence[int], rows: Sequence[int]) -> F32:
        """Compute `tokens` in one step; logits of these rows."""
        wanted = -(-(self.length + len(tokens)) // PAGE_SIZE)
        edits = [(0, int(pool), index, 1 + index) for pool in MODEL_POOLS for index in range(self._pages, wanted)]
        batch = Batch(
            tokens=np.array(tokens, dtype=np.int32),
            seqs=np.zeros(1, dtype=np.int32),
            starts=np.array([self.length], dtype=np.int32),
            lengths=np.array([len(tokens)], dtype=np.int32),
            table_edits=np.array(edits, dtype=np.int32).reshape(-1, 4),
            logit_rows=np.array(rows, dtype=np.int32),
            sampling=None,
            want_logits=True,
        )
        logits = self._backend.step(batch).logits
        assert logits is not None
        self._pages = max(self._pages, wanted)
        self.length += len(tokens)
        return logits

    def chunks(self, tokens: Sequence[int], chunk: int) -> Iterator[F32]:
        """Logits of every position, a chunk at a time."""
        for at in range(0, len(tokens), chunk):
            part = tokens[at : at + chunk]
            yield self.append(part, range(len(part)))

    def logits_at(self, tokens: Sequence[int], positions: Sequence[int], *, chunk: int = 128) -> F32:
        """Compute `tokens` in chunks; logits of some positions in them (ascending, counted from `tokens`' first)."""
        parts = []
        for at in range(0, len(tokens), chunk):
            part = tokens[at : at + chunk]
            parts.append(self.append(part, [p - at for p in positions if at <= p < at + len(part)]))
        return np.concatenate(parts)

    def best_along(self, tokens: Sequence[int]) -> list[int]:
        """Decode one token at a time along `tokens`; the best next token after each."""
        return [int(np.argmax(self.append([token], [0])[0])) for token in tokens]


def assert_greedy_equal(ours: Sequence[int], oracle: Sequence[int], margins: Sequence[float]) -> None:
    """Token for token; another choice is allowed only where the oracle's two best logits are within 2e-3."""
    wrong = [i for i, (a, b) in enumerate(zip(ours, oracle, strict=True)) if a != b and margins[i] > 2e-3]
    assert not wrong, f"greedy tokens differ at {wrong}: {[ours[i] for i in wrong]}, not {[oracle[i] for i in wrong]}"
