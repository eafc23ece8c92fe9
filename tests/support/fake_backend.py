"""A back end without a model that notices every wrong page.

Each place of KV remembers its token, its position and a hash of everything before it. A row is run only if the places
before it, read through the page tables, continue each other from position 0 on; the token it samples is a function of
that hash. So a stale, aliased or missing page is an error at once or changes the output.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.backends.protocol import Batch, BatchOutput, SamplingBatch
from sojourn.core.ids import NULL_PAGE
from sojourn.core.step import Pool, SamplingParams

VOCAB_SIZE = 97
EOS_ID = 5
_MASK = (1 << 64) - 1
_A, _B, _C = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class StaleKvError(AssertionError):
    """A row would have read KV that is not its sequence's."""


def chain_next(chain: int, token: int, position: int) -> int:
    """The hash of a sequence that ends with `token` at `position`, from the hash of what is before it."""
    mixed = (chain * _A + (token + 1) * _B + (position + 1) * _C) & _MASK
    return mixed ^ (mixed >> 29)


def draw(chain: int, temperature: float, seed: int, position: int) -> int:
    """The token at `position` after a sequence of this hash."""
    drawn = chain if temperature == 0 else chain_next(chain, seed, position)
    return (drawn >> 17) % VOCAB_SIZE


def known_logprob(chain: int, token: int) -> float:
    """What a row of this hash says of a token that it was given."""
    return -float(chain_next(chain, token, 0) % 4096) / 16


def expected_logprobs(prompt: Sequence[int]) -> list[float]:
    """Of every token of the prompt but the first."""
    chain = 0
    logprobs: list[float] = []
    for position, token in enumerate(prompt):
        logprobs.append(known_logprob(chain, token))
        chain = chain_next(chain, token, position)
    return logprobs[1:]


def expected_tokens(prompt: Sequence[int], count: int, sampling: SamplingParams | None = None) -> list[int]:
    """What an undisturbed run over `prompt` alone gives: `count` tokens, whatever they are."""
    params = sampling or SamplingParams()
    chain = 0
    for position, token in enumerate(prompt):
        chain = chain_next(chain, token, position)
    output: list[int] = []
    for position in range(len(prompt), len(prompt) + count):
        output.append(draw(chain, params.temperature, params.seed, position))
        chain = chain_next(chain, output[-1], position)
    return output


def expected_completion(
    prompt: Sequence[int], count: int, ending_ids: frozenset[int], sampling: SamplingParams | None = None
) -> list[int]:
    """As `expected_tokens`, up to and with the first of `ending_ids`."""
    output = expected_tokens(prompt, count, sampling)
    for index, token in enumerate(output):
        if token in ending_ids:
            return output[: index + 1]
    return output


class _Memory:
    """The KV of one pool."""

    def __init__(self, num_pages: int, page_size: int, seqs_max: int, pages_max: int) -> None:
        self.tokens = np.full((num_pages, page_size), -1, dtype=np.int64)
        self.positions = np.full((num_pages, page_size), -1, dtype=np.int64)
        self.chains = np.zeros((num_pages, page_size), dtype=np.uint64)
        self.table = np.full((seqs_max, pages_max), NULL_PAGE, dtype=np.int32)


class FakeBackend:
    """Speaks `backends.protocol.Backend`. `rows` counts every token it was asked to run."""

    def __init__(
        self, *, page_size: int, totals: Sequence[int], window: int = 0, seqs_max: int = 16, context: int = 4096
    ) -> None:
        self._page_size = page_size
        self._window = window
        self._seqs_max = seqs_max
        pages_max = -(-context // page_size)
        self._pools = [_Memory(total, page_size, seqs_max, pages_max) for total in totals]
        self.rows = 0
        self.steps = 0
        self.batch_sizes: list[int] = []
        self.row_counts: list[int] = []
        self.fail_with: Exception | None = None  # raised by the next step

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def seqs_max(self) -> int:
        return self._seqs_max

    def close(self) -> None:
        """Nothing is held."""

    # -- pages, for a slower tier
    @property
    def kv_format(self) -> str:
        return f"fake pages of {self._page_size}"

    def page_bytes(self, pool: Pool) -> int:
        return 3 * 8 * self._page_size

    def read_pages(self, pool: Pool, pages: NDArray[np.int32]) -> NDArray[np.uint8]:
        assert pages.all(), "the null page is read"
        memory = self._pools[pool]
        parts = [part[pages].view(np.uint8) for part in (memory.tokens, memory.positions, memory.chains)]
        return np.concatenate(parts, axis=1)

    def write_pages(self, pool: Pool, pages: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        assert pages.all(), "the null page is written"
        memory = self._pools[pool]
        for part, rows in zip((memory.tokens, memory.positions, memory.chains), np.split(data, 3, axis=1), strict=True):
            part[pages] = np.ascontiguousarray(rows).view(part.dtype)

    def step(self, batch: Batch) -> BatchOutput:
        if self.fail_with is not None:
            raise self.fail_with
        for seq, pool, index, page in batch.table_edits.tolist():
            self._pools[pool].table[seq, index] = page
            self._pools[pool].table[seq, index + 1 :] = 0
        assert len(set(batch.seqs.tolist())) == len(batch.seqs), "a sequence occurs twice in a step"
        chains: list[int] = []
        written: set[tuple[int, int]] = set()
        first = 0
        for seq, start, length in zip(batch.seqs.tolist(), batch.starts.tolist(), batch.lengths.tolist(), strict=True):
            assert length > 0, "an empty work"
            chains += self._run(seq, start, batch.tokens[first : first + length].tolist(), written)
            first += length
        assert first == len(batch.tokens), "rows and lengths differ"
        self.rows += first
        self.steps += 1
        self.batch_sizes.append(len(batch.seqs))
        self.row_counts.append(first)
        return self._sample(batch, chains)

    def _run(self, seq: int, start: int, tokens: list[int], written: set[tuple[int, int]]) -> list[int]:
        """Check what the rows would read, write their KV, and give the hash at each."""
        chain = self._read(seq, start)
        size = self._page_size
        for page_index in range(start // size, (start + len(tokens) - 1) // size + 1):
            for number, pool in enumerate(self._pools):
                place = (number, int(pool.table[seq, page_index]))
                if place[1] == NULL_PAGE:
                    raise StaleKvError(f"row {seq} writes the null page of pool {number} at index {page_index}")
                if place in written:
                    raise StaleKvError(f"two rows write page {place}")
                written.add(place)
        chains: list[int] = []
        for position, token in enumerate(tokens, start):
            assert 0 <= token < VOCAB_SIZE, token
            chain = chain_next(chain, token, position)
            index, offset = divmod(position, size)
            for pool in self._pools:
                page = pool.table[seq, index]
                pool.tokens[page, offset] = token
                pool.positions[page, offset] = position
                pool.chains[page, offset] = chain
            chains.append(chain)
        return chains

    def _read(self, seq: int, start: int) -> int:
        """The hash before position `start`, after checking everything that attention there would read."""
        if start == 0:
            return 0
        chains = self._gather(Pool.FULL, seq, 0, start)
        if self._window:
            first = max(0, start - (self._window - 1))
            seen = self._gather(Pool.SWA, seq, first, start)
            if not np.array_equal(seen, chains[first:]):
                raise StaleKvError(f"row {seq}: window and full KV differ before {start}")
        return int(chains[-1])

    def _gather(self, number: Pool, seq: int, first: int, end: int) -> NDArray[np.uint64]:
        pool = self._pools[number]
        positions = np.arange(first, end)
        pages, offsets = pool.table[seq, positions // self._page_size], positions % self._page_size
        if not pages.all():
            raise StaleKvError(f"row {seq} reads the null page of pool {number} in [{first}, {end})")
        if not np.array_equal(pool.positions[pages, offsets], positions):
            raise StaleKvError(f"row {seq} reads foreign positions of pool {number} in [{first}, {end})")
        chains: NDArray[np.uint64] = pool.chains[pages, offsets]
        before = np.concatenate((np.zeros(1, dtype=np.uint64), chains[:-1]))
        tokens = pool.tokens[pages, offsets].astype(np.uint64)
        mixed = before * np.uint64(_A) + (tokens + np.uint64(1)) * np.uint64(_B)
        mixed += (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_C)
        known = slice(0 if first == 0 else 1, None)  # the hash before a window's first token is not in the window
        if not np.array_equal((mixed ^ (mixed >> np.uint64(29)))[known], chains[known]):
            raise StaleKvError(f"row {seq} reads KV of pool {number} that does not continue itself before {end}")
        return chains

    def _sample(self, batch: Batch, chains: list[int]) -> BatchOutput:
        rows, sampling = batch.logit_rows.tolist(), batch.sampling
        none = np.empty(0, dtype=np.float32)
        if sampling is None:
            assert not rows, "logits without sampling"
            empty = np.empty((0, 0))
            return BatchOutput(
                np.empty(0, dtype=np.int32), none, empty.astype(np.int32), empty.astype(np.float32), None
            )
        tokens = [
            draw(chains[row], float(sampling.temperature[i]), int(sampling.seeds[i]), int(sampling.positions[i]))
            for i, row in enumerate(rows)
        ]
        self._check_histories(sampling, rows, chains)
        count = max(0, sampling.num_logprobs)
        logprobs = none if sampling.num_logprobs < 0 else -np.arange(len(rows), dtype=np.float32)
        for i, token in enumerate(sampling.known.tolist()):
            if token >= 0:
                tokens[i], logprobs[i] = token, known_logprob(chains[rows[i]], token)
        return BatchOutput(
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=logprobs,
            top_ids=np.tile(np.arange(count, dtype=np.int32), (len(rows), 1)),
            top_logprobs=np.zeros((len(rows), count), dtype=np.float32),
            logits=None,
        )

    def _check_histories(self, sampling: SamplingBatch, rows: list[int], chains: list[int]) -> None:
        """A history given for penalties is exactly what the row's sequence has been."""
        for i, row in enumerate(rows):
            history = sampling.history[sampling.history_offsets[i] : sampling.history_offsets[i + 1]].tolist()
            if history:
                chain = 0
                for position, token in enumerate(history):
                    chain = chain_next(chain, token, position)
                assert chain == chains[row], f"the history of row {row} is not its sequence"
                assert len(history) == sampling.positions[i], "the history ends before the drawn token"
