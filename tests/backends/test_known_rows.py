"""Log-probabilities of a prompt, chunk by chunk, against the softmax of all its logits at once."""

import numpy as np
import pytest

from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import Backend
from sojourn.backends.reference import ReferenceBackend
from sojourn.backends.reference_sampler import best_first, log_softmax
from sojourn.core.ids import SeqId, StepId
from sojourn.core.step import KnownRows, Pool, Sample, SamplingParams, StepPlan, TableEdit, Work
from sojourn.models.config import ModelConfig
from sojourn.models.packed import MatrixKind, PackedModel
from sojourn.runner.runner import Runner
from tests.backends.tiny import VOCAB, batch_of, gemma, llama, qwen2, random_model

CONFIGS = {"llama": llama(), "gemma": gemma(), "qwen2": qwen2()}
LENGTH, PAGE = 150, 16
PROMPT = np.random.default_rng(9).integers(0, VOCAB, LENGTH).tolist()
PAGES = -(-LENGTH // PAGE)
BEST = 3


def native(model: PackedModel, threads: int = 1) -> NativeBackend:
    pages = 2 * PAGES + 1
    return NativeBackend(model, page_size=PAGE, num_pages=(pages, pages), kv_dtype="f32", threads=threads, seqs_max=2)


def scored(backend: Backend, chunk: int, *, with_company: bool = False) -> list[Sample]:
    """The prompt's tokens but the first, computed in chunks; beside another prompt whose rows are drawn."""
    runner, samples = Runner(backend, lambda: 0.0), list[Sample]()
    for start in range(0, LENGTH, chunk):
        end = min(start + chunk, LENGTH)
        following = tuple(PROMPT[start + 1 : end + 1])
        known = KnownRows(0, following, BEST) if following else None
        works = [Work(SeqId(1), start, tuple(PROMPT[start:end]), _edits(1, start), known=known)]
        if with_company:
            other = tuple(PROMPT[::-1][start:end])
            warm = SamplingParams(temperature=1.0, logit_bias=((3, 5.0),), seed=4)
            works.insert(0, Work(SeqId(0), start, other, _edits(0, start), warm))
        result = runner.launch(StepPlan(StepId(start + 1), tuple(works))).wait()
        samples += result.known[-1] if result.known else ()
    return samples


def _edits(seq: int, start: int) -> tuple[TableEdit, ...]:
    """All pages, before the first chunk."""
    pages = np.arange(1 + seq * PAGES, 1 + (seq + 1) * PAGES, dtype=np.int32)
    return tuple(TableEdit(pool, 0, pages) for pool in (Pool.FULL, Pool.SWA)) if start == 0 else ()


def logits_of(backend: Backend) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    edits = [(0, pool, i, 1 + i) for pool in (0, 1) for i in range(PAGES)]
    logits = backend.step(batch_of([(0, 0, PROMPT)], edits)).logits
    assert logits is not None
    return logits


@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.Q8])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_chunks_threads_and_company_do_not_show(config: ModelConfig, kind: MatrixKind) -> None:
    model = random_model(config, kind)
    whole = scored(native(model), LENGTH)
    assert [sample.token for sample in whole] == PROMPT[1:]
    for chunk in (1, 7, 64):
        assert scored(native(model, threads=2), chunk, with_company=True) == whole
    for row, (logits, sample) in enumerate(zip(logits_of(native(model)), whole, strict=False)):
        own = log_softmax(logits)
        best = best_first(logits.astype(np.float64))[:BEST].tolist()
        assert sample.logprob == pytest.approx(own[PROMPT[row + 1]], abs=2e-5)
        assert [token for token, _ in sample.top] == best
        assert [value for _, value in sample.top] == pytest.approx(own[best].tolist(), abs=2e-5)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_they_are_those_of_the_reference(config: ModelConfig) -> None:
    model = random_model(config, MatrixKind.F32)
    pages = 2 * PAGES + 1
    reference = scored(ReferenceBackend(model, page_size=PAGE, num_pages=(pages, pages), seqs_max=2), 64)
    core = scored(native(model), 64)
    assert [sample.token for sample in core] == [sample.token for sample in reference] == PROMPT[1:]
    values = [sample.logprob for sample in core]
    assert values == pytest.approx([sample.logprob for sample in reference], abs=1e-3)
