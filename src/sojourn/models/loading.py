"""The way in: a name, a path or a hub id becomes a model ready for the core, from the packed cache when it is there.

load      packed model, tokenizer, text        pull      fetch and pack, nothing mapped for long
describe  facts, without packing               list_models   what the catalogue has and what is here
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from sojourn.models import catalog, hub
from sojourn.models.checkpoint import Checkpoint
from sojourn.models.config import ModelConfig
from sojourn.models.gguf import load_gguf
from sojourn.models.hf import load_directory, weight_files
from sojourn.models.manifest import ModelInfo
from sojourn.models.names import Kind, is_hub_id, kind_of
from sojourn.models.packing import Weights
from sojourn.models.plan import make_plan
from sojourn.models.progress import Progress, SilentProgress
from sojourn.models.store import LoadedModel, PackedCache, SourceId
from sojourn.models.store import describe as describe_checkpoint


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    id: SourceId
    open: Callable[[Progress], Checkpoint]  # fetches what is missing first


@dataclass(frozen=True, slots=True)
class ModelListing:
    """One line of `models list`. `cached_bytes` counts what this model takes on this machine."""

    name: str
    title: str
    license: str
    download_bytes: int | None  # None for models outside the catalogue
    is_fetched: bool
    is_packed: bool
    cached_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ModelDescription:
    """`config` is None for a catalogue model that was not fetched yet."""

    listing: ModelListing
    config: ModelConfig | None
    info: ModelInfo | None


def load(
    name_or_path: str, *, cache_dir: Path, weights: Weights | None = None, progress: Progress | None = None
) -> LoadedModel:
    """The model, mapped. Fetches and packs what is missing. Raises ModelError saying what would work."""
    told = progress or SilentProgress()
    source = _resolve(name_or_path, cache_dir, told)
    cache = PackedCache(cache_dir / "packed")
    loaded = cache.open(source.id, weights)
    if loaded is None:
        loaded = cache.build(source.id, source.open(told), weights, told)
    return loaded


def pull(
    name_or_path: str, *, cache_dir: Path, weights: Weights | None = None, progress: Progress | None = None
) -> ModelInfo:
    """Fetch and pack ahead of the first start. A hub id is asked for its current snapshot."""
    told = progress or SilentProgress()
    if is_hub_id(name_or_path):
        hub.fetch(name_or_path, cache_dir / "hub", told)
    return load(name_or_path, cache_dir=cache_dir, weights=weights, progress=told).info


def describe(
    name_or_path: str, *, cache_dir: Path, weights: Weights | None = None, progress: Progress | None = None
) -> ModelDescription:
    """Facts about a model, from the packed cache or the file's own index; packs nothing, fetches only hub ids."""
    told = progress or SilentProgress()
    source = _resolve(name_or_path, cache_dir, told)
    entry = catalog.CATALOG.get(name_or_path)
    is_fetched = entry is None or catalog.file_path(entry, cache_dir / "files").is_file()
    packed = PackedCache(cache_dir / "packed").info(source.id, weights)
    config, info = packed or (None, None)
    if packed is None and is_fetched:
        checkpoint = source.open(told)
        config = checkpoint.config
        info = describe_checkpoint(source.id, checkpoint, make_plan(checkpoint, weights))
    listing = ModelListing(
        name=source.id.name,
        title=entry.title if entry else source.id.location,
        license=entry.license if entry else info.license if info else "not stated",
        download_bytes=entry.download_bytes if entry else None,
        is_fetched=is_fetched,
        is_packed=packed is not None,
        cached_bytes=_cached_bytes(source.id.name, cache_dir),
    )
    return ModelDescription(listing, config, info)


def list_models(cache_dir: Path) -> list[ModelListing]:
    """The catalogue, then every other model that is packed here."""
    packed = {}
    for _, manifest in PackedCache(cache_dir / "packed").manifests():
        packed[manifest.info.name] = manifest.info
    listings = [
        ModelListing(
            entry.name,
            entry.title,
            entry.license,
            entry.download_bytes,
            catalog.file_path(entry, cache_dir / "files").is_file(),
            entry.name in packed,
            _cached_bytes(entry.name, cache_dir),
        )
        for entry in catalog.CATALOG.values()
    ]
    listings += [
        ModelListing(name, info.source, info.license, None, True, True, _cached_bytes(name, cache_dir))
        for name, info in packed.items()
        if name not in catalog.CATALOG
    ]
    return listings


def _cached_bytes(name: str, cache_dir: Path) -> int:
    folders = [
        folder for folder, manifest in PackedCache(cache_dir / "packed").manifests() if manifest.info.name == name
    ]
    if name in catalog.CATALOG:
        folders.append(cache_dir / "files" / name)
    return sum(file.stat().st_size for folder in folders if folder.is_dir() for file in folder.iterdir())


def _resolve(name_or_path: str, cache_dir: Path, progress: Progress) -> _Source:
    """Only a new hub id reaches the network."""
    path = Path(name_or_path).expanduser()
    match kind_of(name_or_path):
        case Kind.CATALOG:
            return _catalog_source(catalog.CATALOG[name_or_path], cache_dir)
        case Kind.FILE:
            return _Source(_local_id(path.stem, name_or_path, path, [path]), lambda _: load_gguf(path))
        case Kind.FOLDER:
            return _directory_source(path.resolve().name, name_or_path, path)
        case Kind.HUB:
            directory = cache_dir / "hub"
            snapshot = hub.known_snapshot(name_or_path, directory) or hub.fetch(name_or_path, directory, progress)
            return _directory_source(name_or_path, name_or_path, snapshot)
        case other:
            assert_never(other)


def _catalog_source(entry: catalog.CatalogEntry, cache_dir: Path) -> _Source:
    identity = SourceId(entry.name, entry.name, _hash(entry.name), entry.sha256, entry.file_bytes)
    return _Source(identity, lambda progress: load_gguf(catalog.fetch(entry, cache_dir / "files", progress)))


def _directory_source(name: str, location: str, path: Path) -> _Source:
    if not (path / "config.json").is_file():
        load_directory(path)  # says what is missing
    files = [*weight_files(path), *sorted(path.glob("*.json")), *sorted(path.glob("*.jinja"))]
    return _Source(_local_id(name, location, path, files), lambda _: load_directory(path))


def _local_id(name: str, location: str, path: Path, files: list[Path]) -> SourceId:
    """A local source has changed when a file's name, size or time of change has."""
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return SourceId(name, location, _hash(str(path.resolve())), _hash(repr(states)), sum(size for _, size, _ in states))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
