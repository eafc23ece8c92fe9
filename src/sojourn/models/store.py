"""The packed cache: one folder per source, width and format version, mapped by every later start.

    packed/<name>-<source>-<weights>-<fingerprint>-v<format>/
        manifest.json   configuration, index of weights.bin, provenance (written last, checksummed)
        weights.bin     arrays at multiples of 64 bytes, in the layout of packed.py
        tokenizer.json  text.json

A changed source has another fingerprint, so its folder is another one, and the outdated one is swept after the new one
stands. Knows no file format of models.
"""

import errno
import logging
import mmap
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ModelError
from sojourn.models import manifest as manifests
from sojourn.models.checkpoint import Checkpoint
from sojourn.models.config import ModelConfig
from sojourn.models.folders import exclusive_scratch, publish
from sojourn.models.manifest import FORMAT_VERSION, Manifest, MatrixPlace, ModelInfo, VectorPlace
from sojourn.models.packed import MatrixKind, PackedMatrix, PackedModel
from sojourn.models.packing import Weights, pack_chunks, part_sizes
from sojourn.models.plan import PackingPlan, make_plan
from sojourn.models.progress import Progress
from sojourn.models.text_config import TextConfig

ALIGNMENT = 64
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
logger = logging.getLogger("sojourn.models")
_MANIFEST, _WEIGHTS, _TOKENIZER, _TEXT = "manifest.json", "weights.bin", "tokenizer.json", "text.json"


@dataclass(frozen=True, slots=True)
class SourceId:
    """Which model (name and `identity`, a hash of where it lies) and which state of it (`fingerprint`)."""

    name: str
    location: str  # catalogue name, path or hub id: for a person
    identity: str
    fingerprint: str
    file_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    packed: PackedModel
    tokenizer_json: str
    text: TextConfig
    info: ModelInfo


class PackedCache:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, source: SourceId, weights: Weights | None) -> LoadedModel | None:
        """Map the packed model; None if it is not here, damaged, or of another version or source."""
        return _open(self._folder(source, weights))

    def info(self, source: SourceId, weights: Weights | None) -> tuple[ModelConfig, ModelInfo] | None:
        manifest = read_manifest(self._folder(source, weights))
        return None if manifest is None else (manifest.config, manifest.info)

    def build(
        self, source: SourceId, checkpoint: Checkpoint, weights: Weights | None, progress: Progress
    ) -> LoadedModel:
        """Pack and publish the folder, then map it. Where the cache cannot be written to, what is packed is not kept."""
        target = self._folder(source, weights)
        try:
            with exclusive_scratch(self._directory, progress) as scratch:
                if self.open(source, weights) is None:  # or another process was faster
                    _write(scratch, source, checkpoint, make_plan(checkpoint, weights), progress)
                    publish(scratch, target)
                    self._sweep_outdated(target)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise _unwritten(self._directory, error) from error
            logger.warning(
                "%s: the packed model cannot be kept (%s), so every start packs it again; "
                "let SOJOURN_CACHE name a folder that can be written to",
                self._directory,
                error.strerror,
            )
            return _packed_for_now(source, checkpoint, weights, progress)
        loaded = self.open(source, weights)
        if loaded is None:
            raise ModelError(f"{target}: cannot be read back after packing; check the disk")
        return loaded

    def manifests(self) -> Iterator[tuple[Path, Manifest]]:
        for folder in sorted(self._directory.glob(f"*-v{FORMAT_VERSION}")):
            manifest = read_manifest(folder)
            if manifest is not None:
                yield folder, manifest

    def _folder(self, source: SourceId, weights: Weights | None) -> Path:
        return self._directory / f"{_prefix(source, weights)}{source.fingerprint[:16]}-v{FORMAT_VERSION}"

    def _sweep_outdated(self, current: Path) -> None:
        prefix = current.name.removesuffix(f"-v{FORMAT_VERSION}").rpartition("-")[0]
        for folder in self._directory.glob(f"{prefix}-*"):
            if folder != current:
                shutil.rmtree(folder, ignore_errors=True)


def _packed_for_now(
    source: SourceId, checkpoint: Checkpoint, weights: Weights | None, progress: Progress
) -> LoadedModel:
    """In a folder that is removed as soon as its files are mapped: the system keeps them for as long as they are."""
    try:
        with tempfile.TemporaryDirectory(prefix="sojourn-packed-") as place:
            folder = Path(place)
            _write(folder, source, checkpoint, make_plan(checkpoint, weights), progress)
            loaded = _open(folder)
    except OSError as error:
        raise _unwritten(Path(tempfile.gettempdir()), error) from error
    if loaded is None:
        raise ModelError(f"{tempfile.gettempdir()}: what was packed cannot be read back; check the disk")
    return loaded


def _open(folder: Path) -> LoadedModel | None:
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    try:
        packed = _map(folder, manifest)
        text = TextConfig.from_json((folder / _TEXT).read_text(encoding="utf-8"))
        tokenizer_json = (folder / _TOKENIZER).read_bytes().decode()
    except (OSError, ValueError, ModelError):
        return None
    return LoadedModel(packed, tokenizer_json, text, manifest.info)


def _unwritten(directory: Path, error: OSError) -> ModelError:
    return ModelError(f"{directory}: the packed model cannot be written: {error}")


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, if it verifies and the files beside it have the sizes it says."""
    try:
        manifest = manifests.from_json((folder / _MANIFEST).read_text(encoding="utf-8"))
        if manifest is None:
            return None
        sizes = {name: (folder / name).stat().st_size for name in manifest.file_sizes}
    except (OSError, ValueError):
        return None
    return manifest if sizes == manifest.file_sizes else None


def _prefix(source: SourceId, weights: Weights | None) -> str:
    name = re.sub(r"[^A-Za-z0-9._]+", "_", source.name)[:60]
    width = "own" if weights is None else weights.value
    return f"{name}-{source.identity[:8]}-{width}-"


def _write(folder: Path, source: SourceId, checkpoint: Checkpoint, plan: PackingPlan, progress: Progress) -> None:
    matrices, vectors, total = _lay_out(checkpoint, plan)
    free = shutil.disk_usage(folder).free
    if free < total:
        raise ModelError(
            f"{folder.parent}: packing {source.name} needs {total / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB are free; "
            f"free some, or choose another cache directory"
        )
    progress.start(total, f"packing {source.name}")
    with (folder / _WEIGHTS).open("wb") as handle:
        handle.truncate(total)
        for name, place in matrices.items():
            _write_matrix(handle, checkpoint, name, place, progress)
        for name, vector_place in vectors.items():
            handle.seek(vector_place.offset)
            handle.write(np.ascontiguousarray(checkpoint.vectors[name], "<f4").data)
            progress.advance(vector_place.size * 4)
    (folder / _TOKENIZER).write_text(checkpoint.tokenizer_json, encoding="utf-8")
    (folder / _TEXT).write_text(checkpoint.text.to_json(), encoding="utf-8")
    info = describe(source, checkpoint, plan)
    sizes = {name: (folder / name).stat().st_size for name in (_WEIGHTS, _TOKENIZER, _TEXT)}
    document = manifests.to_json(Manifest(checkpoint.config, info, matrices, vectors, sizes))
    (folder / _MANIFEST).write_text(document, encoding="utf-8")


def describe(source: SourceId, checkpoint: Checkpoint, plan: PackingPlan) -> ModelInfo:
    return ModelInfo(
        name=source.name,
        source=source.location,
        license=checkpoint.license,
        parameters=checkpoint.parameters,
        file_bytes=source.file_bytes,
        weight_bytes=plan.weight_bytes,
        narrowed=plan.narrowed,
        notes=plan.notes,
    )


def _lay_out(checkpoint: Checkpoint, plan: PackingPlan) -> tuple[dict[str, MatrixPlace], dict[str, VectorPlace], int]:
    """Offsets of every array, and the size of the whole file."""
    offset = 0
    matrices: dict[str, MatrixPlace] = {}
    for name, matrix in checkpoint.matrices.items():
        starts: dict[str, int] = {}
        for part, size in part_sizes(plan.kinds[name], matrix.rows, matrix.cols).items():
            starts[part] = offset
            offset = _aligned(offset + size)
        matrices[name] = MatrixPlace(plan.kinds[name], matrix.rows, matrix.cols, **starts)
    vectors: dict[str, VectorPlace] = {}
    for name, vector in checkpoint.vectors.items():
        vectors[name] = VectorPlace(offset, vector.size)
        offset = _aligned(offset + vector.nbytes)
    return matrices, vectors, offset


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _write_matrix(handle: BinaryIO, checkpoint: Checkpoint, name: str, place: MatrixPlace, progress: Progress) -> None:
    offsets = {"data": place.data, "scales": place.scales, "mins": place.mins}
    for chunk in pack_chunks(checkpoint.matrices[name], place.kind):
        for part, array in (("data", chunk.data), ("scales", chunk.scales), ("mins", chunk.mins)):
            offset = offsets[part]
            if array is None or offset is None:
                continue
            handle.seek(offset)
            handle.write(array.data)
            offsets[part] = offset + array.nbytes
            progress.advance(array.nbytes)


def _map(folder: Path, manifest: Manifest) -> PackedModel:
    with (folder / _WEIGHTS).open("rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, np.uint8)
    return PackedModel(
        config=manifest.config,
        matrices={name: _map_matrix(data, place) for name, place in manifest.matrices.items()},
        vectors={
            name: data[place.offset : place.offset + 4 * place.size].view(np.float32)
            for name, place in manifest.vectors.items()
        },
    )


def _map_matrix(data: NDArray[np.uint8], place: MatrixPlace) -> PackedMatrix:
    sizes = part_sizes(place.kind, place.rows, place.cols)
    quants = data[place.data : place.data + sizes["data"]]
    return PackedMatrix(
        place.kind,
        place.rows,
        place.cols,
        quants.view(np.float32) if place.kind is MatrixKind.F32 else quants,
        None if place.scales is None else data[place.scales : place.scales + sizes["scales"]].view(np.float16),
        None if place.mins is None else data[place.mins : place.mins + sizes["mins"]].view(np.float16),
    )
