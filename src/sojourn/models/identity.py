"""Which keys and values a model makes: a digest of all that they are computed from. Knows no file and no name.

Reads every weight once, at more than a gigabyte a second; what is only sampled could leave two models alike that are not.
"""

import hashlib
from dataclasses import replace

from sojourn.models.packed import PackedModel


def kv_identity(model: PackedModel) -> bytes:
    """Configuration, matrices as they are packed, and vectors."""
    digest = hashlib.sha256(repr(replace(model.config, name="")).encode())
    for name, matrix in sorted(model.matrices.items()):
        digest.update(f"\0{name} {matrix.kind.value} {matrix.rows} {matrix.cols}\0".encode())
        for part in (matrix.data, matrix.scales, matrix.mins):
            if part is not None:
                digest.update(part.reshape(-1).view("u1").data)
    for name, vector in sorted(model.vectors.items()):
        digest.update(f"\0{name}\0".encode())
        digest.update(vector.tobytes())
    return digest.digest()
