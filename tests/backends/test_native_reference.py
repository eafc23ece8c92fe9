"""The core against the reference back end, which is plain numpy."""

import numpy as np
import pytest

from sojourn.backends.native import InstructionSet, NativeBackend, cpu_features
from sojourn.backends.reference import ReferenceBackend
from sojourn.models.config import ModelConfig
from sojourn.models.packed import MatrixKind
from tests.backends.tiny import VOCAB, batch_of, gemma, llama, qwen2, random_model

SETS: list[InstructionSet] = [name for name in ("portable", "avx2", "avx512") if cpu_features()[name]]
LENGTH = 300
PAGES = 1 + 2 * -(-LENGTH // 16)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("config", [llama(), gemma(), qwen2()], ids=["llama", "gemma", "qwen2"])
def test_logits_are_those_of_the_reference(config: ModelConfig, instruction_set: InstructionSet) -> None:
    model = random_model(config, MatrixKind.F32)
    native = NativeBackend(
        model,
        page_size=16,
        num_pages=(PAGES, PAGES),
        kv_dtype="f32",
        threads=2,
        seqs_max=2,
        instruction_set=instruction_set,
    )
    reference = ReferenceBackend(model, page_size=16, num_pages=(PAGES, PAGES), seqs_max=2)
    edits = [(s, pool, i, 1 + 2 * i + s) for s in (0, 1) for pool in (0, 1) for i in range(-(-LENGTH // 16))]
    tokens = np.random.default_rng(5).integers(0, VOCAB, (2, LENGTH)).tolist()
    for start, end in [(0, 100), (100, 101), (101, LENGTH)]:
        batch = batch_of([(1, start, tokens[1][start:end]), (0, start, tokens[0][start:end])], edits)
        ours, theirs = native.step(batch).logits, reference.step(batch).logits
        assert ours is not None
        assert theirs is not None
        assert np.abs(ours - theirs).max() < 2e-4
        edits = []


@pytest.mark.parametrize("kind", [MatrixKind.Q8, MatrixKind.Q4, MatrixKind.Q4M])
def test_quantised_activations_cost_little(kind: MatrixKind) -> None:
    model = random_model(llama(), kind)
    native = NativeBackend(model, page_size=16, num_pages=(PAGES, 1), kv_dtype="f16", threads=1, seqs_max=1)
    reference = ReferenceBackend(model, page_size=16, num_pages=(PAGES, 1), seqs_max=1)
    edits = [(0, 0, i, 1 + i) for i in range(PAGES - 1)]
    batch = batch_of([(0, 0, np.random.default_rng(5).integers(0, VOCAB, LENGTH).tolist())], edits)
    ours, theirs = native.step(batch).logits, reference.step(batch).logits
    assert ours is not None
    assert theirs is not None
    assert np.abs(ours - theirs).mean() < 0.04 * np.abs(theirs).mean()
