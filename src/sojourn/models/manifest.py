"""The packed cache's index as JSON: configuration, where each array lies, where the model came from.

The document carries a checksum of itself; a text that does not verify, of another version or of the wrong shape is
None to `from_json`: the cache then packs again. Knows nothing of folders.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sojourn.models.config import Activation, AttentionConfig, ModelConfig, Rope
from sojourn.models.packed import MatrixKind

# Of the manifest, the packed layout, and what the loaders derive (configuration, tokenizer.json): a change of any raises it.
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a model for a person. `narrowed` says what lost precision because narrower weights were asked for."""

    name: str
    source: str  # catalogue name, path or hub id
    license: str
    parameters: int
    file_bytes: int
    weight_bytes: Mapping[str, int]  # by kind of matrix; "vectors" are norms and biases
    narrowed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def weight_bytes_total(self) -> int:
        return sum(self.weight_bytes.values())


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """Offsets are bytes into weights.bin."""

    kind: MatrixKind
    rows: int
    cols: int
    data: int
    scales: int | None = None
    mins: int | None = None


@dataclass(frozen=True, slots=True)
class VectorPlace:
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    config: ModelConfig
    info: ModelInfo
    matrices: Mapping[str, MatrixPlace]
    vectors: Mapping[str, VectorPlace]
    file_sizes: Mapping[str, int]  # the folder's other files, by name


def to_json(manifest: Manifest) -> str:
    body = json.dumps({"format": FORMAT_VERSION, **asdict(manifest)}, sort_keys=True)
    return json.dumps({"sha256": _digest(body), "body": body})


def from_json(text: str) -> Manifest | None:
    try:
        outer = json.loads(text)
        if _digest(outer["body"]) != outer["sha256"]:
            return None
        raw = json.loads(outer["body"])
        if raw["format"] != FORMAT_VERSION:
            return None
        attention = raw["config"]["attention"]
        attention["rope"] = _rope(**attention["rope"])
        if attention["rope_sliding"] is not None:
            attention["rope_sliding"] = _rope(**attention["rope_sliding"])
        attention["layer_slides"] = tuple(attention["layer_slides"])
        raw["config"]["attention"] = AttentionConfig(**attention)
        raw["config"]["activation"] = Activation(raw["config"]["activation"])
        return Manifest(
            config=ModelConfig(**raw["config"]),
            info=ModelInfo(**raw["info"] | {name: tuple(raw["info"][name]) for name in ("narrowed", "notes")}),
            matrices={k: MatrixPlace(**v | {"kind": MatrixKind(v["kind"])}) for k, v in raw["matrices"].items()},
            vectors={k: VectorPlace(**v) for k, v in raw["vectors"].items()},
            file_sizes=raw["file_sizes"],
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _rope(inv_freq: list[float], attention_factor: float) -> Rope:
    return Rope(tuple(inv_freq), attention_factor)
