"""What the words for a model mean: a name of the catalogue, a path, or an id on the hub. Reads no model, asks no network.

Light, so that a command can refuse what is none before it starts anything.
"""

import difflib
import re
from enum import Enum
from pathlib import Path

from sojourn.core.errors import ModelError
from sojourn.models import catalog

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_GGUF = ".gguf"
GGUF_MAGIC = b"GGUF"


class Kind(Enum):
    CATALOG = "a name of the catalogue"
    FILE = "a GGUF file"
    FOLDER = "a folder in Hugging Face's layout"
    HUB = "an id on the hub"


def kind_of(name_or_path: str) -> Kind:
    """Raises ModelError, saying what would work, for what is none of them. What is in a file or a folder is not read."""
    if name_or_path in catalog.CATALOG:
        return Kind.CATALOG
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return Kind.FILE
    if path.is_dir():
        return Kind.FOLDER
    if is_hub_id(name_or_path):
        return Kind.HUB
    close = difflib.get_close_matches(name_or_path, catalog.CATALOG, n=1, cutoff=0.5)
    raise ModelError(
        f"{name_or_path}: no such model, file or directory{f' (did you mean {close[0]}?)' if close else ''}. "
        f"Known names: {', '.join(catalog.CATALOG)}; a .gguf file, a model directory or a hub id (owner/name) also work"
    )


def check_model(name_or_path: str) -> None:
    """Raise ModelError for what is no model at first sight: whatever else is wrong with it, loading says."""
    kind, path = kind_of(name_or_path), Path(name_or_path).expanduser()
    if kind is Kind.FOLDER and not (path / "config.json").is_file():
        raise ModelError(f"{name_or_path}: no config.json in it; a model directory has Hugging Face's layout")
    if kind is Kind.FILE and not _begins_as_gguf(path):
        raise ModelError(f"{name_or_path}: not a GGUF file; name a .gguf file, or the directory of a safetensors model")


def is_hub_id(text: str) -> bool:
    """A file's name that is mistyped is none."""
    return _HUB_ID.fullmatch(text) is not None and not text.endswith(_GGUF) and not Path(text).exists()


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            return handle.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
