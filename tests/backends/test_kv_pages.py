"""Pages leave a back end and come back elsewhere: the same bits, other page numbers, another engine."""

from collections.abc import Callable

import numpy as np
import pytest

from sojourn.backends.native import NativeBackend
from sojourn.backends.protocol import KvDtype
from sojourn.backends.reference import ReferenceBackend
from sojourn.core.errors import CorruptionError
from sojourn.core.step import Pool
from sojourn.models.config import ModelConfig
from sojourn.models.packed import MatrixKind
from tests.backends.tiny import VOCAB, batch_of, gemma, llama, random_model

PAGES = 24
LENGTH = 37
AnyBackend = NativeBackend | ReferenceBackend
Make = Callable[[ModelConfig, int], AnyBackend]


def native(dtype: KvDtype) -> Make:
    def make(config: ModelConfig, page_size: int) -> AnyBackend:
        model = random_model(config, MatrixKind.F32)
        return NativeBackend(
            model, page_size=page_size, num_pages=(PAGES, PAGES), kv_dtype=dtype, threads=1, seqs_max=2
        )

    return make


def reference(config: ModelConfig, page_size: int) -> AnyBackend:
    model = random_model(config, MatrixKind.F32)
    return ReferenceBackend(model, page_size=page_size, num_pages=(PAGES, PAGES), seqs_max=2)


MAKES: dict[str, Make] = {"native f16": native("f16"), "native f32": native("f32"), "reference": reference}
TOKENS = [int(token) for token in np.random.default_rng(3).integers(VOCAB, size=LENGTH + 1)]


def edits(pages: list[int]) -> list[tuple[int, int, int, int]]:
    return [(0, pool, index, page) for pool in (0, 1) for index, page in enumerate(pages)]


def logits(backend: AnyBackend, pages: list[int], start: int) -> np.ndarray:
    batch = batch_of([(0, start, TOKENS[start:])], edits(pages), [LENGTH - start])
    found = backend.step(batch).logits
    assert found is not None
    return found


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("config", [llama, gemma])
@pytest.mark.parametrize("kind", MAKES)
def test_kv_read_from_one_engine_and_written_to_another_gives_the_same_bits(
    kind: str, config: Callable[[], ModelConfig], page_size: int
) -> None:
    count = -(-(LENGTH + 1) // page_size)
    here, there = list(range(1, count + 1)), list(range(PAGES - 1, PAGES - 1 - count, -1))
    source, target = MAKES[kind](config(), page_size), MAKES[kind](config(), page_size)
    assert source.kv_format == target.kv_format
    source.step(batch_of([(0, 0, TOKENS[:LENGTH])], edits(here)))
    for pool in (Pool.FULL, Pool.SWA):
        rows = source.read_pages(pool, np.array(here, dtype=np.int32))
        assert rows.shape == (count, source.page_bytes(pool))
        target.write_pages(pool, np.array(there, dtype=np.int32), rows)
        assert np.array_equal(target.read_pages(pool, np.array(there, dtype=np.int32)), rows)
    resumed = logits(target, there, LENGTH)
    assert np.array_equal(resumed, logits(source, here, LENGTH))
    assert np.array_equal(resumed, logits(MAKES[kind](config(), page_size), here, 0))
    source.close()
    target.close()


def test_a_pool_without_layers_has_pages_of_no_bytes() -> None:
    for make in MAKES.values():
        backend = make(llama(), 16)
        assert backend.page_bytes(Pool.SWA) == 0
        assert backend.read_pages(Pool.SWA, np.array([1, 2], dtype=np.int32)).shape == (2, 0)
        backend.write_pages(Pool.SWA, np.array([1], dtype=np.int32), np.empty((1, 0), dtype=np.uint8))


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("page", [0, -1, PAGES])
def test_the_null_page_and_pages_that_are_not_are_refused(kind: str, page: int) -> None:
    backend = MAKES[kind](llama(), 16)
    pages = np.array([page], dtype=np.int32)
    with pytest.raises(CorruptionError):
        backend.read_pages(Pool.FULL, pages)
    with pytest.raises(CorruptionError):
        backend.write_pages(Pool.FULL, pages, np.zeros((1, backend.page_bytes(Pool.FULL)), dtype=np.uint8))


@pytest.mark.parametrize("kind", MAKES)
def test_bytes_of_another_size_are_refused(kind: str) -> None:
    backend = MAKES[kind](llama(), 16)
    with pytest.raises(CorruptionError):
        backend.write_pages(Pool.FULL, np.array([1], dtype=np.int32), np.zeros((1, 7), dtype=np.uint8))


def test_the_format_tells_apart_what_differs_in_bytes_or_in_arithmetic() -> None:
    formats = {make(llama(), size).kv_format for make in MAKES.values() for size in (4, 16)}
    assert len(formats) == 2 * len(MAKES)
