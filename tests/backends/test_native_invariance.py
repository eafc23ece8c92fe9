"""Promise 1 at its root: a row's bits depend on its own history only."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from sojourn.backends.native import InstructionSet, KvDtype, NativeBackend, cpu_features
from sojourn.backends.protocol import F32
from sojourn.models.config import ModelConfig
from sojourn.models.packed import MatrixKind, PackedModel
from tests.backends.tiny import VOCAB, batch_of, gemma, llama, qwen2, random_model

SETS: list[InstructionSet] = [name for name in ("portable", "avx2", "avx512") if cpu_features()[name]]
CONFIGS = {"llama": llama(), "gemma": gemma(), "qwen2": qwen2()}
LENGTH = 600  # past two spans of attention
PROMPT = np.random.default_rng(7).integers(0, VOCAB, LENGTH).tolist()


def backend(
    model: PackedModel,
    *,
    page_size: int = 16,
    threads: int = 1,
    kv_dtype: KvDtype = "f16",
    instruction_set: InstructionSet = "auto",
    seqs_max: int = 8,
) -> NativeBackend:
    pages = 1 + seqs_max * -(-LENGTH // page_size)
    return NativeBackend(
        model,
        page_size=page_size,
        num_pages=(pages, pages),
        kv_dtype=kv_dtype,
        threads=threads,
        seqs_max=seqs_max,
        instruction_set=instruction_set,
    )


def tables(seqs: Sequence[int], page_size: int) -> list[tuple[int, int, int, int]]:
    """Edits that give each sequence all its pages, scattered over the pool."""
    count = -(-LENGTH // page_size)
    return [(s, pool, i, 1 + i * 8 + s) for s in seqs for pool in (0, 1) for i in range(count)]


def run_chunks(native: NativeBackend, chunks: Sequence[int], page_size: int = 16, seq: int = 0) -> F32:
    """Logits of the prompt, computed in chunks of these lengths, the last repeated."""
    edits = tables([seq], page_size)
    parts: list[F32] = []
    start = 0
    while start < LENGTH:
        size = min(chunks[min(len(parts), len(chunks) - 1)], LENGTH - start)
        logits = native.step(batch_of([(seq, start, PROMPT[start : start + size])], edits)).logits
        assert logits is not None
        parts.append(logits)
        start += size
        edits = []
    return np.concatenate(parts)


def assert_same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    assert a.shape == b.shape
    different = np.flatnonzero((a.view(np.uint32) != b.view(np.uint32)).any(axis=1))
    assert different.size == 0, f"rows {different[:10]} differ, by {np.abs(a - b).max()}"


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
@pytest.mark.parametrize("kind", list(MatrixKind))
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_chunks_threads_and_pages_do_not_show(
    config: ModelConfig, kind: MatrixKind, kv_dtype: KvDtype, instruction_set: InstructionSet
) -> None:
    model = random_model(config, kind)
    whole = run_chunks(backend(model, kv_dtype=kv_dtype, instruction_set=instruction_set), [LENGTH])
    assert np.isfinite(whole).all()
    for chunks, threads, page_size in [([7], 2, 16), ([64], 1, 64), ([300, 1, 299], 2, 4), ([LENGTH], 2, 256)]:
        native = backend(
            model, kv_dtype=kv_dtype, instruction_set=instruction_set, threads=threads, page_size=page_size
        )
        assert_same_bits(run_chunks(native, chunks, page_size), whole)
        native.close()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_single_tokens_and_single_position_pages_do_not_show(
    config: ModelConfig, instruction_set: InstructionSet
) -> None:
    model = random_model(config, MatrixKind.Q4M)
    whole = run_chunks(backend(model, instruction_set=instruction_set), [LENGTH])
    native = backend(model, instruction_set=instruction_set, threads=2, page_size=1)
    assert_same_bits(run_chunks(native, [1], page_size=1), whole)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("kind", list(MatrixKind))
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_company_does_not_show(config: ModelConfig, kind: MatrixKind, instruction_set: InstructionSet) -> None:
    """The prompt alone, and in steps with six others of other lengths at other places."""
    model = random_model(config, kind)
    alone = run_chunks(backend(model, instruction_set=instruction_set), [LENGTH])
    native = backend(model, threads=2, instruction_set=instruction_set)
    rng = np.random.default_rng(3)
    others = [0, 1, 2, 4, 5, 6]
    edits = tables(range(7), 16)
    done = dict.fromkeys(others, 0)
    start = 0
    rows: list[F32] = []
    while start < LENGTH:
        size = min(int(rng.integers(1, 120)), LENGTH - start)
        parts = [(3, start, PROMPT[start : start + size])]
        for seq in others:
            extra = min([1, 1, 5, 40][rng.integers(4)], LENGTH - done[seq])
            if extra > 0:
                parts.append((seq, done[seq], rng.integers(0, VOCAB, extra).tolist()))
                done[seq] += extra
        rng.shuffle(parts)
        first = sum(len(tokens) for seq, _, tokens in parts[: [seq for seq, _, _ in parts].index(3)])
        logits = native.step(batch_of(parts, edits, logit_rows=range(first, first + size))).logits
        assert logits is not None
        rows.append(logits)
        edits = []
        start += size
    assert_same_bits(np.concatenate(rows), alone)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_a_page_held_before_does_not_show(config: ModelConfig) -> None:
    """Stale K and V behind and ahead of a sequence are masked to nothing, whatever they are."""
    model = random_model(config, MatrixKind.F32)
    fresh = run_chunks(backend(model, kv_dtype="f32"), [64])
    native = backend(model, kv_dtype="f32")
    run_chunks(native, [LENGTH])
    other = PROMPT[::-1]
    native.step(batch_of([(0, 0, other)]))
    assert_same_bits(run_chunks(native, [64]), fresh)


def test_pages_behind_the_window_may_go() -> None:
    model = random_model(gemma(), MatrixKind.F32)
    kept = run_chunks(backend(model), [50])
    native = backend(model)
    edits = tables([0], 16)
    rows: list[F32] = []
    for start in range(0, LENGTH, 50):
        logits = native.step(batch_of([(0, start, PROMPT[start : start + 50])], edits)).logits
        assert logits is not None
        rows.append(logits)
        live = max(0, start + 50 + 1 - 40) // 16
        edits = [(*place, page if place[2] >= live else 0) for *place, page in tables([0], 16) if place[1] == 1]
    assert_same_bits(np.concatenate(rows), kept)


@pytest.mark.parametrize("instruction_set", SETS[1:])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_instruction_sets_agree(config: ModelConfig, instruction_set: InstructionSet) -> None:
    model = random_model(config, MatrixKind.F32)
    portable = run_chunks(backend(model, kv_dtype="f32", instruction_set="portable"), [LENGTH])
    other = run_chunks(backend(model, kv_dtype="f32", instruction_set=instruction_set), [LENGTH])
    assert np.abs(portable - other).max() < 1e-3
