"""The GGUF container: metadata fields and tensor extents, checked against the file's size before anything is read.

    magic, version | counts | key-value fields | tensor index | padding | tensor data

Knows no architecture. It exists beside `gguf.GGUFReader` because that one makes an array of every token of the
vocabulary (seconds for 262,144 of them) and meets a truncated file with whatever numpy says.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from sojourn.core.errors import ModelError
from sojourn.models.checkpoint import StoredTensor
from sojourn.models.names import GGUF_MAGIC

VERSIONS = (2, 3)
_DIMENSIONS_MAX = 4
_SCALARS: dict[int, np.dtype[np.generic]] = {
    GGUFValueType.UINT8: np.dtype("<u1"),
    GGUFValueType.INT8: np.dtype("<i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
    GGUFValueType.BOOL: np.dtype("?"),
}


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    path: Path
    fields: Mapping[str, object]  # str, int, float, bool, or a list of one of them
    tensors: Mapping[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Map the file and read its index. Raises ModelError naming the file and the field that is wrong."""
    try:
        with path.open("rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(f"{path}: cannot be read: {error}") from error
    cursor = _Cursor(path, mapped)
    num_tensors, num_fields = _read_preamble(cursor)
    fields: dict[str, object] = {}
    for index in range(num_fields):
        cursor.reading = f"name of metadata field {index}"
        name = cursor.text()
        cursor.reading = f"metadata field {name}"
        fields[name] = cursor.value(cursor.integer("<I"))
    parts = fields.get("split.count", 1)
    if parts != 1:
        raise ModelError(
            f"{path}: split.count is {parts}: one part of a split model; join the parts into one file first"
        )
    entries = [_read_tensor_entry(cursor, index) for index in range(num_tensors)]
    alignment = fields.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise ModelError(f"{path}: general.alignment is {alignment}, not a power of two")
    data_start = -(-cursor.offset // alignment) * alignment
    data = np.frombuffer(mapped, np.uint8)
    tensors = {entry.name: _view(path, data, data_start, entry) for entry in entries}
    if len(tensors) != len(entries):
        raise ModelError(f"{path}: a tensor name occurs twice")
    return GgufFile(path, fields, tensors)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    encoding: GGMLQuantizationType
    offset: int


class _Cursor:
    """Reads forward through the mapped header; every read is checked against the end of the file."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self.offset = 0
        self.reading = "magic"  # what an error names
        self._mapped = mapped
        self._size = len(mapped)

    def bytes(self, count: int) -> bytes:
        start, stop = self.offset, self.offset + count
        if stop > self._size:
            raise ModelError(
                f"{self.path}: truncated in {self.reading}: it needs bytes up to {stop:,}, the file has {self._size:,}; "
                f"fetch the file again"
            )
        self.offset = stop
        return self._mapped[start:stop]

    def integer(self, form: str) -> int:
        return int(struct.unpack(form, self.bytes(struct.calcsize(form)))[0])

    def text(self) -> str:
        try:
            return self.bytes(self.integer("<Q")).decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path}: {self.reading} is not UTF-8: {error}") from error

    def value(self, kind: int) -> object:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            return self._array(self.integer("<I"), self.integer("<Q"))
        return self._numbers(kind, 1)[0]

    def _array(self, kind: int, count: int) -> list[object]:
        if kind == GGUFValueType.ARRAY:
            raise ModelError(f"{self.path}: {self.reading} is an array of arrays, which no known model uses")
        if kind != GGUFValueType.STRING:
            return self._numbers(kind, count)
        if count * 8 > self._size - self.offset:
            self.bytes(count * 8)  # a corrupt count: fails here, before the loop
        return [self.text() for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> list[object]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise ModelError(
                f"{self.path}: {self.reading} has the unknown value type {kind}; the file is corrupt or too new"
            )
        numbers: list[object] = np.frombuffer(self.bytes(count * dtype.itemsize), dtype).tolist()
        return numbers


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    path = cursor.path
    if cursor.bytes(len(GGUF_MAGIC)) != GGUF_MAGIC:
        raise ModelError(
            f"{path}: not a GGUF file (it does not begin with GGUF); give a .gguf file, a directory or a name"
        )
    cursor.reading = "version"
    version = cursor.integer("<I")
    if version not in VERSIONS:
        kind = "a big-endian GGUF file" if version & 0xFFFF == 0 else f"GGUF version {version}"
        raise ModelError(f"{path}: {kind} is not supported; little-endian versions 2 and 3 are")
    cursor.reading = "tensor and field counts"
    return cursor.integer("<Q"), cursor.integer("<Q")


def _read_tensor_entry(cursor: _Cursor, index: int) -> _Entry:
    cursor.reading = f"entry of tensor {index}"
    name = cursor.text()
    cursor.reading = f"entry of tensor {name}"
    num_dimensions = cursor.integer("<I")
    if not 1 <= num_dimensions <= _DIMENSIONS_MAX:
        raise ModelError(f"{cursor.path}: tensor {name} has {num_dimensions} dimensions; the file is corrupt")
    shape = tuple(cursor.integer("<Q") for _ in range(num_dimensions))[::-1]
    code = cursor.integer("<I")
    try:
        encoding = GGMLQuantizationType(code)
    except ValueError as error:
        raise ModelError(
            f"{cursor.path}: tensor {name} has the unknown type {code}; the file is corrupt or too new"
        ) from error
    return _Entry(name, shape, encoding, cursor.integer("<Q"))


def _view(path: Path, data: NDArray[np.uint8], data_start: int, entry: _Entry) -> StoredTensor:
    block_elements, block_bytes = GGML_QUANT_SIZES[entry.encoding]
    elements = 1
    for extent in entry.shape:
        elements *= extent
    if entry.shape[-1] % block_elements:
        raise ModelError(
            f"{path}: tensor {entry.name} has rows of {entry.shape[-1]} values, "
            f"not a multiple of {block_elements} as {entry.encoding.name} needs; the file is corrupt"
        )
    start = data_start + entry.offset
    stop = start + elements // block_elements * block_bytes
    if stop > data.size:
        raise ModelError(
            f"{path}: truncated: tensor {entry.name} ends at byte {stop:,}, the file has {data.size:,}; "
            f"fetch the file again"
        )
    return StoredTensor(entry.name, entry.encoding, entry.shape, data[start:stop])
