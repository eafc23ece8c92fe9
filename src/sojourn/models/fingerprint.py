"""Whether two models are the same for what was said to them. Knows no file: the name and the place do not count.

Two widths of the same weights are one model here: token ids mean the same, and a history goes on with either. Their keys
and values differ; whoever keeps those names the width besides.
"""

import hashlib
from dataclasses import replace

from sojourn.models.store import LoadedModel


def fingerprint_of(model: LoadedModel) -> str:
    """64 hexadecimal digits of tokenizer, texts, configuration, and the vectors that no width changes (norms, biases)."""
    digest = hashlib.sha256()
    for part in (model.tokenizer_json, model.text.to_json(), repr(replace(model.packed.config, name=""))):
        digest.update(hashlib.sha256(part.encode()).digest())
    for name, vector in sorted(model.packed.vectors.items()):
        digest.update(name.encode() + b"\0" + vector.tobytes())
    return digest.hexdigest()
