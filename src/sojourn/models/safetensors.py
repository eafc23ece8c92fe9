"""The safetensors container: headers checked by the `safetensors` library, tensors as views of the mapped file.

The library's numpy reader has no bfloat16, and copies; it validates here, and the views are made from the same header.
Knows no architecture.
"""

import json
import math
import mmap
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import safetensors
from gguf.constants import GGMLQuantizationType

from sojourn.core.errors import ModelError
from sojourn.models.checkpoint import StoredTensor

_ENCODINGS = {"F32": GGMLQuantizationType.F32, "F16": GGMLQuantizationType.F16, "BF16": GGMLQuantizationType.BF16}


def read_safetensors(paths: Iterable[Path]) -> dict[str, StoredTensor]:
    """All tensors of the files, by name. Raises ModelError naming the file that is broken or the tensor that is strange."""
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        for tensor in _read_file(path):
            if tensor.name in tensors:
                raise ModelError(f"{path}: tensor {tensor.name} is also in another file of this model")
            tensors[tensor.name] = tensor
    return tensors


def _read_file(path: Path) -> list[StoredTensor]:
    try:
        with safetensors.safe_open(path, "np") as checked:  # validates header, extents and file size
            checked.keys()
        with path.open("rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read: {error}; if it was truncated, fetch it again") from error
    (header_size,) = struct.unpack_from("<Q", mapped)
    header = json.loads(mapped[8 : 8 + header_size])
    data = np.frombuffer(mapped, np.uint8)[8 + header_size :]
    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        encoding = _ENCODINGS.get(entry["dtype"])
        if encoding is None:
            raise ModelError(
                f"{path}: tensor {name} has type {entry['dtype']}, which is not supported; F32, F16, BF16 are"
            )
        start, stop = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if math.prod(shape):
            tensors.append(StoredTensor(name, encoding, shape, data[start:stop]))
    return tensors
