"""What every loader produces: a model's numbers, its weights as their file stores them, and its text side.

Knows no file format and no packed layout. `raw` arrays are usually views of a mapped file, so a checkpoint costs no
memory until it is packed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from sojourn.core.errors import ModelError
from sojourn.models.config import ModelConfig
from sojourn.models.text_config import TextConfig

READABLE = "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, the K types, F16, BF16 and F32"


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """One tensor of a file. `shape` is outermost first (rows, cols); `raw` is a flat view of its stored bytes."""

    name: str
    encoding: GGMLQuantizationType
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    def values(self) -> NDArray[np.float32]:
        """All values as float32, flat: for vectors; matrices are packed chunk by chunk."""
        return dequantized(self.name, self.encoding, self.raw.reshape(1, -1)).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class SourceMatrix:
    """One weight matrix [rows, cols] in its file's encoding: `raw` holds a row's bytes per row.

    `row_order` (when set) names the stored row of each wanted row: row r is `raw[row_order[r]]`.
    """

    name: str  # as the file calls it
    encoding: GGMLQuantizationType
    cols: int
    raw: NDArray[np.uint8]
    row_order: NDArray[np.intp] | None = None

    @property
    def rows(self) -> int:
        return int(self.raw.shape[0])

    def stored_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        if self.row_order is None:
            return np.ascontiguousarray(self.raw[start:stop])
        return self.raw[self.row_order[start:stop]]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Names of matrices and vectors are those of `packed.py`."""

    config: ModelConfig
    matrices: Mapping[str, SourceMatrix]
    vectors: Mapping[str, NDArray[np.float32]]
    license: str
    tokenizer_json: str
    text: TextConfig

    @property
    def parameters(self) -> int:
        matrices = sum(matrix.rows * matrix.cols for matrix in self.matrices.values())
        return matrices + sum(vector.size for vector in self.vectors.values())


def dequantized(name: str, encoding: GGMLQuantizationType, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Stored rows [rows, bytes] as float32 [rows, values]."""
    try:
        return np.asarray(dequantize(np.ascontiguousarray(raw), encoding), np.float32)
    except NotImplementedError as error:
        raise ModelError(f"tensor {name}: type {encoding.name} cannot be read; {READABLE} can") from error
