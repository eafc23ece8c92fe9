"""The layout in which the core reads a model's weights. The file that holds them is mapped in `store.py`.

A matrix [rows, cols] (out, in: y = W x) is stored in blocks of 16 rows, rows padded with zeros to a multiple of 16.
G = cols / 32 groups; `cols` of a quantised matrix is a multiple of 32. Element order inside the arrays:

    F32   quants  none            values  float32 [rows/16, cols, 16]
    Q8    quants  uint8 [rows/16, G, 8, 16, 4]    quant of row r, group g, k = 4 j + i  at [r/16, g, j, r%16, i], stored + 128
          scales  float16 [rows/16, G, 16]        value = (quant - 128) * scale
    Q4    quants  uint8 [rows/16, G, 4, 16, 4]    low nibble: k = 4 j + i; high nibble: k = 16 + 4 j + i
          scales  float16 [rows/16, G, 16]        value = (nibble - 8) * scale           (GGUF Q4_0, bit for bit)
    Q4M   as Q4, and mins float16 [rows/16, G, 16]  value = nibble * scale + min         (GGUF Q4_1, bit for bit)

Every array starts at a multiple of 64 bytes. Names of the tensors:

    embed                                matrix [vocab_size, hidden]; also the head when embeddings are tied
    head                                 matrix [vocab_size, hidden], absent when tied
    layers.{i}.q k v o gate up down      matrices
    layers.{i}.q_bias k_bias v_bias      float32 vectors, with attention.qkv_bias
    layers.{i}.attn_norm ffn_norm        float32 vectors [hidden]
    layers.{i}.q_norm k_norm             float32 vectors [head_dim], with attention.qk_norm
    layers.{i}.post_attn_norm post_ffn_norm   float32 vectors [hidden], with post_norms
    final_norm                           float32 vector [hidden]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from sojourn.models.config import ModelConfig

ROWS_PER_BLOCK = 16
GROUP = 32


class MatrixKind(StrEnum):
    F32 = "f32"
    Q8 = "q8"
    Q4 = "q4"
    Q4M = "q4m"


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """One weight matrix in the core's layout. `data` is `values` for F32 and `quants` otherwise; flat arrays."""

    kind: MatrixKind
    rows: int
    cols: int
    data: NDArray[np.float32] | NDArray[np.uint8]
    scales: NDArray[np.float16] | None = None
    mins: NDArray[np.float16] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PackedModel:
    """A model ready for the core. The arrays are read-only views, usually of a mapped file."""

    config: ModelConfig
    matrices: Mapping[str, PackedMatrix]
    vectors: Mapping[str, NDArray[np.float32]]
