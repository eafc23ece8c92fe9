"""From a file's weights to the core's layout (`packed.py`), vectorised, a few thousand rows at a time.

Q4_0 and Q4_1 are repacked bit for bit, scales included; Q8_0, Q5_0 and (when 8 bits are asked for) Q4_0 are held
exactly by 8-bit groups; every other quantised type is dequantised and rounded to 8-bit groups of 32 (absmax / 127).
Knows no file format but GGML's block encodings, and nothing of names: the caller says which matrix is a table
(embeddings and head), which is never narrowed below 8 bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from sojourn.core.errors import ModelError, law
from sojourn.models.checkpoint import SourceMatrix, dequantized
from sojourn.models.packed import GROUP, ROWS_PER_BLOCK, MatrixKind, PackedMatrix

Encoding = GGMLQuantizationType
_T = TypeVar("_T", bound=np.generic)

FLOAT_ENCODINGS = frozenset({Encoding.F32, Encoding.F16, Encoding.BF16})
_EXACT_IN_Q8 = frozenset({Encoding.Q8_0, Encoding.Q5_0, Encoding.Q4_0})
_CHUNK_ELEMENTS = 1 << 22  # elements packed at a time: bounds the float32 copy of a dequantised chunk to 16 MiB


class Weights(StrEnum):
    """The width a caller asks for; without one, each tensor keeps its file's own width."""

    FOUR_BIT = "4bit"
    EIGHT_BIT = "8bit"
    F32 = "f32"


class Fidelity(StrEnum):
    """What packing did to the values."""

    EXACT = "exact"
    ROUNDED = "rounded"  # to groups wider than the file's own encoding: an error far below the file's
    NARROWED = "narrowed"  # to fewer bits than the file has: lossy


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Rows of quantised groups, row by row: quants [rows, G, bytes], scales and mins [rows, G]."""

    quants: NDArray[np.uint8]
    scales: NDArray[np.float16]
    mins: NDArray[np.float16] | None = None


def choose_kind(encoding: Encoding, weights: Weights | None, *, is_table: bool) -> MatrixKind:
    """The kind a matrix is packed to. 4 bits are kept where the file has them; tables get at least 8 otherwise."""
    if weights is Weights.F32 or (weights is None and encoding in FLOAT_ENCODINGS):
        return MatrixKind.F32
    if weights is not Weights.EIGHT_BIT:
        if encoding is Encoding.Q4_0:
            return MatrixKind.Q4
        if encoding is Encoding.Q4_1:
            return MatrixKind.Q4M
        if weights is Weights.FOUR_BIT and not is_table:
            return MatrixKind.Q4M
    return MatrixKind.Q8


def fidelity(encoding: Encoding, kind: MatrixKind) -> Fidelity:
    if kind is MatrixKind.F32 or kind is MatrixKind.Q4:
        return Fidelity.EXACT
    if kind is MatrixKind.Q4M:
        return Fidelity.EXACT if encoding is Encoding.Q4_1 else Fidelity.NARROWED
    if encoding in _EXACT_IN_Q8:
        return Fidelity.EXACT
    return Fidelity.NARROWED if encoding in FLOAT_ENCODINGS else Fidelity.ROUNDED


def part_sizes(kind: MatrixKind, rows: int, cols: int) -> dict[str, int]:
    """Bytes of each array of a packed matrix: `data`, `scales`, `mins`, those that the kind has."""
    padded = -(-rows // ROWS_PER_BLOCK) * ROWS_PER_BLOCK
    groups = padded * (cols // GROUP)
    match kind:
        case MatrixKind.F32:
            return {"data": padded * cols * 4}
        case MatrixKind.Q8:
            return {"data": groups * 32, "scales": groups * 2}
        case MatrixKind.Q4:
            return {"data": groups * 16, "scales": groups * 2}
        case MatrixKind.Q4M:
            return {"data": groups * 16, "scales": groups * 2, "mins": groups * 2}


def pack_chunks(source: SourceMatrix, kind: MatrixKind) -> Iterator[PackedMatrix]:
    """The matrix in pieces of whole row blocks; the pieces' arrays, joined in order, are those of the whole."""
    if kind is not MatrixKind.F32 and source.cols % GROUP:
        raise ModelError(
            f"tensor {source.name}: {source.cols} columns are not a multiple of {GROUP}, "
            f"so it cannot be stored in quantised groups; ask for f32 weights"
        )
    step = max(ROWS_PER_BLOCK, _CHUNK_ELEMENTS // source.cols // ROWS_PER_BLOCK * ROWS_PER_BLOCK)
    for start in range(0, source.rows, step):
        stop = min(start + step, source.rows)
        raw = source.stored_rows(start, stop)
        if kind is MatrixKind.F32:
            values = dequantized(source.name, source.encoding, raw)
            yield PackedMatrix(kind, stop - start, source.cols, _lay_out_values(values))
        else:
            yield _lay_out_groups(kind, source.cols, _groups_of(source, kind, raw))


def pack(source: SourceMatrix, kind: MatrixKind) -> PackedMatrix:
    chunks = list(pack_chunks(source, kind))
    scales = [chunk.scales for chunk in chunks if chunk.scales is not None]
    mins = [chunk.mins for chunk in chunks if chunk.mins is not None]
    return PackedMatrix(
        kind,
        source.rows,
        source.cols,
        np.concatenate([chunk.data for chunk in chunks]),
        np.concatenate(scales) if scales else None,
        np.concatenate(mins) if mins else None,
    )


def unpack(matrix: PackedMatrix) -> NDArray[np.float32]:
    """The values as float32 [rows, cols], computed as the packed layout defines them."""
    blocks = -(-matrix.rows // ROWS_PER_BLOCK)
    if matrix.kind is MatrixKind.F32:
        values = matrix.data.view(np.float32).reshape(blocks, matrix.cols, ROWS_PER_BLOCK).transpose(0, 2, 1)
        return np.ascontiguousarray(values.reshape(-1, matrix.cols)[: matrix.rows])
    groups = matrix.cols // GROUP
    lanes = 8 if matrix.kind is MatrixKind.Q8 else 4
    quants = matrix.data.view(np.uint8).reshape(blocks, groups, lanes, ROWS_PER_BLOCK, 4)
    quants = quants.transpose(0, 3, 1, 2, 4).reshape(blocks * ROWS_PER_BLOCK, groups, lanes * 4)
    if matrix.kind is MatrixKind.Q8:
        integers = quants.astype(np.float32) - 128
    else:
        integers = np.concatenate([quants & 15, quants >> 4], axis=-1).astype(np.float32)
    if matrix.kind is MatrixKind.Q4:
        integers -= 8
    result = integers * _per_row(matrix.scales, blocks, groups)
    if matrix.kind is MatrixKind.Q4M:
        result += _per_row(matrix.mins, blocks, groups)
    return np.ascontiguousarray(result.reshape(-1, matrix.cols)[: matrix.rows])


def _per_row(halves: NDArray[np.float16] | None, blocks: int, groups: int) -> NDArray[np.float32]:
    if halves is None:
        raise ModelError("a quantised matrix has no scales or mins")
    ordered = halves.reshape(blocks, groups, ROWS_PER_BLOCK).transpose(0, 2, 1)
    return ordered.reshape(blocks * ROWS_PER_BLOCK, groups, 1).astype(np.float32)


def _groups_of(source: SourceMatrix, kind: MatrixKind, raw: NDArray[np.uint8]) -> _Groups:
    """A chunk of stored rows as groups of the wanted kind; exact where the encoding allows it."""
    rows = raw.shape[0]
    block_bytes = GGML_QUANT_SIZES[source.encoding][1]
    if kind is MatrixKind.Q4M and source.encoding is Encoding.Q4_1:
        blocks = raw.reshape(rows, -1, block_bytes)
        groups = _Groups(blocks[..., 4:], _halves(blocks, 0), _halves(blocks, 2))
    elif kind is MatrixKind.Q4M:
        groups = _quantize_4bit(dequantized(source.name, source.encoding, raw))
    elif kind is MatrixKind.Q4:
        law(source.encoding is Encoding.Q4_0, "%s: %s packed as Q4", source.name, source.encoding)
        blocks = raw.reshape(rows, -1, block_bytes)
        groups = _Groups(blocks[..., 2:], _halves(blocks, 0))
    elif source.encoding in _EXACT_IN_Q8:
        groups = _exact_8bit(source.encoding, raw.reshape(rows, -1, block_bytes))
    else:
        groups = _quantize_8bit(dequantized(source.name, source.encoding, raw))
    if not np.isfinite(groups.scales).all() or (groups.mins is not None and not np.isfinite(groups.mins).all()):
        raise ModelError(f"tensor {source.name}: values are not finite or too large for 16-bit scales; ask for f32")
    return groups


def _halves(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0]


def _exact_8bit(encoding: Encoding, blocks: NDArray[np.uint8]) -> _Groups:
    """Q8_0, Q5_0 and Q4_0 as 8-bit groups: the same integers under the same scales."""
    scales = _halves(blocks, 0)
    if encoding is Encoding.Q8_0:
        return _Groups(blocks[..., 2:] ^ np.uint8(128), scales)  # two's complement + 128
    packed = blocks[..., -16:]
    low = np.concatenate([packed & 15, packed >> 4], axis=-1)
    if encoding is Encoding.Q4_0:
        return _Groups(low + np.uint8(128 - 8), scales)
    high = np.unpackbits(np.ascontiguousarray(blocks[..., 2:6]), axis=-1, bitorder="little")
    return _Groups((low | (high << 4)) + np.uint8(128 - 16), scales)


def _quantize_8bit(values: NDArray[np.float32]) -> _Groups:
    grouped = values.reshape(values.shape[0], -1, GROUP)
    largest = np.abs(grouped).max(axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by the caller
        scales = (largest / 127).astype(np.float16)
        # a scale that half precision rounded far down (a subnormal) would clip: take the next one up
        clips = scales.astype(np.float32) * np.float32(127.5) < largest
        scales = np.where(clips, np.nextafter(scales, np.float16(np.inf)), scales)
        quants = np.rint(grouped * _inverse(scales)).clip(-127, 127).astype(np.int16)
    return _Groups((quants + 128).astype(np.uint8), scales)


def _quantize_4bit(values: NDArray[np.float32]) -> _Groups:
    grouped = values.reshape(values.shape[0], -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by the caller
        mins = grouped.min(axis=-1).astype(np.float16)
        scales = ((grouped.max(axis=-1) - mins.astype(np.float32)) / 15).astype(np.float16)
        scales = np.maximum(scales, np.float16(0))
        shifted = grouped - mins.astype(np.float32)[..., None]
        quants = np.rint(shifted * _inverse(scales)).clip(0, 15).astype(np.uint8)
    return _Groups(quants[..., :16] | (quants[..., 16:] << 4), scales, mins)


def _inverse(scales: NDArray[np.float16]) -> NDArray[np.float32]:
    wide = scales.astype(np.float32)[..., None]
    return np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)


def _pad_rows(array: NDArray[_T]) -> NDArray[_T]:
    missing = -array.shape[0] % ROWS_PER_BLOCK
    if not missing:
        return array
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def _lay_out_values(values: NDArray[np.float32]) -> NDArray[np.float32]:
    padded = _pad_rows(values)
    return padded.reshape(-1, ROWS_PER_BLOCK, values.shape[1]).transpose(0, 2, 1).reshape(-1)


def _lay_out_groups(kind: MatrixKind, cols: int, groups: _Groups) -> PackedMatrix:
    rows, per_row, width = groups.quants.shape
    quants = _pad_rows(groups.quants).reshape(-1, ROWS_PER_BLOCK, per_row, width // 4, 4)
    return PackedMatrix(
        kind,
        rows,
        cols,
        quants.transpose(0, 2, 3, 1, 4).reshape(-1),
        _lay_out_halves(groups.scales),
        None if groups.mins is None else _lay_out_halves(groups.mins),
    )


def _lay_out_halves(halves: NDArray[np.float16]) -> NDArray[np.float16]:
    padded = _pad_rows(halves)
    return padded.reshape(-1, ROWS_PER_BLOCK, halves.shape[1]).transpose(0, 2, 1).reshape(-1)
