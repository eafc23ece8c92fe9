"""Packing keeps what it says it keeps: bit for bit, exactly, or within half a step."""

import itertools

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Encoding
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sojourn.core.errors import ModelError
from sojourn.models.checkpoint import SourceMatrix
from sojourn.models.packed import MatrixKind
from sojourn.models.packing import Fidelity, Weights, choose_kind, fidelity, pack, pack_chunks, part_sizes, unpack

WRITABLE = [Encoding.Q4_0, Encoding.Q4_1, Encoding.Q5_0, Encoding.Q5_1, Encoding.Q8_0, Encoding.F16, Encoding.BF16]


def random_blocks(encoding: Encoding, rows: int, cols: int, seed: int = 0) -> NDArray[np.uint8]:
    """Any bytes are legal quants; scales are made finite and of moderate size by quantising random rows first."""
    values = np.random.default_rng(seed).normal(size=(rows, cols)).astype(np.float32)
    return np.ascontiguousarray(gguf.quantize(values, encoding)).view(np.uint8).reshape(rows, -1)


def source_of(encoding: Encoding, rows: int = 40, cols: int = 96, seed: int = 0) -> SourceMatrix:
    return SourceMatrix("w", encoding, cols, random_blocks(encoding, rows, cols, seed))


def values_of(source: SourceMatrix) -> NDArray[np.float32]:
    return gguf.dequantize(source.raw, source.encoding).reshape(source.rows, source.cols)


@pytest.mark.parametrize("rows", [1, 16, 40])
@pytest.mark.parametrize("weights", [None, *Weights])
@pytest.mark.parametrize("encoding", WRITABLE)
def test_values_come_back(encoding: Encoding, weights: Weights | None, rows: int) -> None:
    source = source_of(encoding, rows)
    kind = choose_kind(encoding, weights, is_table=False)
    packed = pack(source, kind)
    got, want = unpack(packed), values_of(source)
    assert got.shape == (rows, 96)
    if fidelity(encoding, kind) is Fidelity.EXACT:
        np.testing.assert_array_equal(got, want)
        return
    groups = want.reshape(rows, -1, 32)
    span = groups.max(-1) - groups.min(-1)
    step = span / 15 if kind is MatrixKind.Q4M else np.abs(groups).max(-1) / 127
    error = np.abs(got - want).reshape(groups.shape).max(-1)
    assert (error <= step * 0.52 + np.abs(groups).max(-1) * 2**-11).all()


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [(Encoding.Q4_0, MatrixKind.Q4), (Encoding.Q4_1, MatrixKind.Q4M), (Encoding.Q8_0, MatrixKind.Q8)],
)
def test_layout_is_the_documented_one(encoding: Encoding, kind: MatrixKind) -> None:
    """Every quant and scale sits where the docstring of packed.py says, read off by a loop."""
    source = source_of(encoding, rows=20, cols=64)
    packed = pack(source, kind)
    wide = kind is MatrixKind.Q8
    quants = packed.data.reshape(2, 2, 8 if wide else 4, 16, 4)
    assert packed.scales is not None
    scales = packed.scales.reshape(2, 2, 16)
    want = values_of(source)
    for row, col in itertools.product(range(20), range(64)):
        block, lane, group, k = row // 16, row % 16, col // 32, col % 32
        scale = np.float32(scales[block, group, lane])
        if wide:
            value = (np.float32(quants[block, group, k // 4, lane, k % 4]) - 128) * scale
        else:
            byte = int(quants[block, group, k % 16 // 4, lane, k % 4])
            nibble = np.float32(byte >> 4 if k >= 16 else byte & 15)
            value = (nibble - 8) * scale
            if packed.mins is not None:
                value = nibble * scale + np.float32(packed.mins.reshape(2, 2, 16)[block, group, lane])
        assert value == want[row, col]


def test_float_layout_and_padding() -> None:
    values = np.arange(18 * 5, dtype=np.float32).reshape(18, 5)
    packed = pack(SourceMatrix("w", Encoding.F32, 5, values.view(np.uint8)), MatrixKind.F32)
    laid_out = packed.data.reshape(2, 5, 16)
    assert laid_out[1, 3, 1] == values[17, 3]
    assert not laid_out[1, :, 2:].any()


def test_rows_are_reordered_before_they_are_packed() -> None:
    source = source_of(Encoding.Q4_1)
    order = np.random.default_rng(1).permutation(source.rows)
    reordered = SourceMatrix("w", source.encoding, source.cols, source.raw, order)
    np.testing.assert_array_equal(unpack(pack(reordered, MatrixKind.Q4M)), values_of(source)[order])


def test_chunks_join_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(Encoding.Q4_1, rows=70)
    whole = pack(source, MatrixKind.Q4M)
    monkeypatch.setattr("sojourn.models.packing._CHUNK_ELEMENTS", 96 * 16)
    assert len(list(pack_chunks(source, MatrixKind.Q4M))) == 5
    pieces = pack(source, MatrixKind.Q4M)
    np.testing.assert_array_equal(pieces.data, whole.data)
    assert pieces.scales is not None
    assert pieces.mins is not None
    np.testing.assert_array_equal(pieces.scales, whole.scales)
    np.testing.assert_array_equal(pieces.mins, whole.mins)
    sizes = {"data": whole.data.nbytes, "scales": pieces.scales.nbytes, "mins": pieces.mins.nbytes}
    assert part_sizes(MatrixKind.Q4M, 70, 96) == sizes


@given(st.integers(0, 2**32 - 1), st.floats(-30, 30))
def test_8_bit_rounding_is_within_half_a_step_at_every_magnitude(seed: int, exponent: float) -> None:
    values = (np.random.default_rng(seed).normal(size=(1, 64)) * 2.0**exponent).astype(np.float32)
    source = SourceMatrix("w", Encoding.F32, 64, values.view(np.uint8))
    largest = np.abs(values).max()
    if largest / 127 > 65504:
        with pytest.raises(ModelError, match="too large for 16-bit scales"):
            pack(source, MatrixKind.Q8)
        return
    packed = pack(source, MatrixKind.Q8)
    assert packed.scales is not None
    steps = packed.scales.astype(np.float32).reshape(2, 16)[:, :1].repeat(32, axis=1).reshape(1, 64)
    assert (np.abs(unpack(packed) - values) <= steps * 0.5 * (1 + 1e-5)).all()


def test_zero_rows_stay_zero() -> None:
    source = SourceMatrix("w", Encoding.F32, 64, np.zeros((16, 64), np.float32).view(np.uint8))
    for kind in (MatrixKind.F32, MatrixKind.Q8, MatrixKind.Q4M):
        assert not unpack(pack(source, kind)).any()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_values_that_no_scale_holds_are_refused(bad: float) -> None:
    values = np.ones((1, 32), np.float32)
    values[0, 3] = bad
    source = SourceMatrix("blk.0.w", Encoding.F32, 32, values.view(np.uint8))
    with pytest.raises(ModelError, match=r"blk\.0\.w: values are not finite"):
        pack(source, MatrixKind.Q8)


def test_columns_that_make_no_groups_are_refused() -> None:
    source = SourceMatrix("blk.0.w", Encoding.F32, 40, np.ones((1, 40), np.float32).view(np.uint8))
    with pytest.raises(ModelError, match=r"blk\.0\.w: 40 columns are not a multiple of 32.*ask for f32"):
        pack(source, MatrixKind.Q8)


def test_a_type_that_cannot_be_read_is_named() -> None:
    source = SourceMatrix("blk.0.w", Encoding.Q8_1, 32, np.zeros((1, 36), np.uint8))
    with pytest.raises(ModelError, match=r"blk\.0\.w: type Q8_1 cannot be read; Q4_0"):
        pack(source, MatrixKind.Q8)


def test_widths_follow_the_file_unless_asked() -> None:
    assert choose_kind(Encoding.Q4_0, None, is_table=True) is MatrixKind.Q4
    assert choose_kind(Encoding.Q4_1, None, is_table=False) is MatrixKind.Q4M
    assert choose_kind(Encoding.Q6_K, None, is_table=False) is MatrixKind.Q8
    assert choose_kind(Encoding.BF16, None, is_table=False) is MatrixKind.F32
    assert choose_kind(Encoding.BF16, Weights.FOUR_BIT, is_table=True) is MatrixKind.Q8
    assert choose_kind(Encoding.BF16, Weights.FOUR_BIT, is_table=False) is MatrixKind.Q4M
    assert choose_kind(Encoding.Q4_0, Weights.EIGHT_BIT, is_table=False) is MatrixKind.Q8
    assert choose_kind(Encoding.Q4_1, Weights.F32, is_table=False) is MatrixKind.F32
    assert fidelity(Encoding.BF16, MatrixKind.Q8) is Fidelity.NARROWED
    assert fidelity(Encoding.Q6_K, MatrixKind.Q8) is Fidelity.ROUNDED
