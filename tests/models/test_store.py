"""The packed cache: later loads are the first one's equal, and whatever is outdated or damaged is packed again."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tests.support.model_files import GgufOptions, tiny_model, write_directory, write_gguf

from sojourn.core.errors import ModelError
from sojourn.models import manifest as manifests
from sojourn.models import store
from sojourn.models.gguf import load_gguf
from sojourn.models.loading import describe, list_models, load
from sojourn.models.packing import Weights, unpack
from sojourn.models.progress import SilentProgress


class CountingProgress(SilentProgress):
    def __init__(self) -> None:
        self.started: list[tuple[int, str]] = []
        self.done = 0

    def start(self, total: int, what: str) -> None:
        self.started.append((total, what))

    def advance(self, amount: int) -> None:
        self.done += amount


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tiny_model("gemma3", tied=True))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def packings(path: Path | str, cache: Path, weights: Weights | None = None) -> int:
    """How often a load packed."""
    progress = CountingProgress()
    load(str(path), cache_dir=cache, weights=weights, progress=progress)
    return len(progress.started)


def packed_folder(cache: Path) -> Path:
    (folder,) = (cache / "packed").glob("tiny-*")
    return folder


def test_a_later_load_equals_the_first(model_path: Path, cache: Path) -> None:
    first = load(str(model_path), cache_dir=cache)
    later = load(str(model_path), cache_dir=cache)
    checkpoint = load_gguf(model_path)
    assert first.packed.config == later.packed.config == checkpoint.config
    assert first.text == later.text == checkpoint.text
    assert first.tokenizer_json == later.tokenizer_json == checkpoint.tokenizer_json
    assert first.info == later.info
    model = tiny_model("gemma3", tied=True)
    assert later.packed.matrices.keys() | later.packed.vectors.keys() == model.weights.keys()
    for name, matrix in later.packed.matrices.items():
        np.testing.assert_array_equal(unpack(matrix), model.weights[name])
    for name, vector in later.packed.vectors.items():
        np.testing.assert_array_equal(vector, model.weights[name])


@pytest.mark.parametrize("weights", [None, *Weights])
def test_arrays_are_aligned_and_read_only(model_path: Path, cache: Path, weights: Weights | None) -> None:
    packed = load(str(model_path), cache_dir=cache, weights=weights).packed
    arrays = [a for m in packed.matrices.values() for a in (m.data, m.scales, m.mins) if a is not None]
    for array in [*arrays, *packed.vectors.values()]:
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable


def test_progress_counts_every_byte(model_path: Path, cache: Path) -> None:
    progress = CountingProgress()
    info = load(str(model_path), cache_dir=cache, progress=progress).info
    ((total, what),) = progress.started
    assert what == "packing tiny"
    assert info.weight_bytes_total == progress.done <= total


def test_packed_once_per_width(model_path: Path, cache: Path) -> None:
    assert [packings(model_path, cache) for _ in range(3)] == [1, 0, 0]
    assert [packings(model_path, cache, Weights.EIGHT_BIT) for _ in range(2)] == [1, 0]
    assert packings(model_path, cache) == 0


def test_a_changed_source_is_packed_again_and_the_old_packing_swept(model_path: Path, cache: Path) -> None:
    assert packings(model_path, cache) == 1
    before = packed_folder(cache)
    write_gguf(model_path, tiny_model("gemma3", tied=True, seed=1))
    os.utime(model_path, ns=(1, 1))
    assert packings(model_path, cache) == 1
    assert packed_folder(cache) != before
    matrix = load(str(model_path), cache_dir=cache).packed.matrices["layers.0.q"]
    np.testing.assert_array_equal(unpack(matrix), tiny_model("gemma3", seed=1, tied=True).weights["layers.0.q"])


def test_another_format_version_is_packed_again(model_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert packings(model_path, cache) == 1
    for module in (store, manifests):
        monkeypatch.setattr(module, "FORMAT_VERSION", 999)
    assert [packings(model_path, cache) for _ in range(2)] == [1, 0]
    assert packed_folder(cache).name.endswith("-v999")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("manifest.json", cut),
        ("manifest.json", flip),
        ("manifest.json", lambda path: path.write_text("[]")),
        ("manifest.json", Path.unlink),
        ("weights.bin", cut),
        ("weights.bin", Path.unlink),
        ("tokenizer.json", cut),
        ("text.json", lambda path: path.write_text("{" + " " * (path.stat().st_size - 1))),
    ],
)
def test_a_damaged_packing_is_packed_again(model_path: Path, cache: Path, file: str, damage: object) -> None:
    assert callable(damage)
    want = load(str(model_path), cache_dir=cache)
    damage(packed_folder(cache) / file)
    assert packings(model_path, cache) == 1
    again = load(str(model_path), cache_dir=cache)
    assert (again.packed.config, again.text, again.info) == (want.packed.config, want.text, want.info)


def test_a_failed_packing_leaves_nothing(model_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(CountingProgress):
        def advance(self, amount: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(str(model_path), cache_dir=cache, progress=Interrupted())
    assert [path.name for path in (cache / "packed").iterdir()] == [".lock"]
    orphan = cache / "packed" / ".scratch-of-a-dead-process"
    orphan.mkdir()
    assert packings(model_path, cache) == 1
    assert not orphan.exists()


def test_no_room_is_said_in_numbers(model_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: _Usage(1024))
    with pytest.raises(ModelError, match=r"packing tiny needs 1 MiB, 0 MiB are free; free some, or choose another"):
        load(str(model_path), cache_dir=cache)


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_a_cache_that_cannot_be_written_is_named(model_path: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ModelError, match=r"file/packed: the packed model cannot be written"):
        load(str(model_path), cache_dir=blocked)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_cache_that_is_read_only_is_used_without_keeping_anything(
    model_path: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    kept = load(str(model_path), cache_dir=cache)
    assert not caplog.records
    mkdir, other = Path.mkdir, tmp_path / "other"

    def refuse(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.is_relative_to(other):
            raise OSError(number, os.strerror(number), str(path))
        mkdir(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", refuse)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    loaded = load(str(model_path), cache_dir=other)
    for name, matrix in kept.packed.matrices.items():
        np.testing.assert_array_equal(unpack(loaded.packed.matrices[name]), unpack(matrix))
    assert (loaded.info, loaded.text, loaded.tokenizer_json) == (kept.info, kept.text, kept.tokenizer_json)
    assert not list(temporary.iterdir())
    (record,) = caplog.records
    assert (record.levelname, "SOJOURN_CACHE" in record.getMessage()) == ("WARNING", True)
    assert os.strerror(number) in record.getMessage()


def _load_in_process(path: str, cache: str, queue: "multiprocessing.SimpleQueue[str]") -> None:
    queue.put(json.dumps(load(path, cache_dir=Path(cache)).info.weight_bytes))


def test_two_processes_may_pack_at_once(model_path: Path, cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    workers = [context.Process(target=_load_in_process, args=(str(model_path), str(cache), queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    answers = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    assert answers[0] == answers[1]
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted(path.name for path in (cache / "packed").iterdir()) == [".lock", packed_folder(cache).name]


def test_a_directory_is_packed_again_when_a_file_in_it_changes(tmp_path: Path, cache: Path) -> None:
    path = write_directory(tmp_path / "tiny", tiny_model("qwen3"))
    assert [packings(path, cache) for _ in range(2)] == [1, 0]
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    assert packings(path, cache) == 1
    assert load(str(path), cache_dir=cache).packed.config.context_length == 64


def test_narrowing_is_said_and_widths_kept_are_too(tmp_path: Path, cache: Path) -> None:
    path = str(write_directory(tmp_path / "tiny", tiny_model("qwen3")))
    own = load(path, cache_dir=cache).info
    assert own.narrowed == ()
    assert own.notes == ("16 matrices of F32 kept exactly as 32-bit floats",)
    four = load(path, cache_dir=cache, weights=Weights.FOUR_BIT).info
    assert four.narrowed == (
        "2 matrices of F32 narrowed to 8-bit groups: lossy, as asked for",
        "14 matrices of F32 narrowed to 4-bit groups with minimum: lossy, as asked for",
    )
    assert four.notes == ("embed and head kept at 8 bits: tables are not narrowed further",)
    assert four.weight_bytes_total < own.weight_bytes_total / 4


def test_description_without_packing_equals_the_packed_one(model_path: Path, cache: Path) -> None:
    before = describe(str(model_path), cache_dir=cache)
    assert not before.listing.is_packed
    assert not (cache / "packed").exists()
    load(str(model_path), cache_dir=cache)
    after = describe(str(model_path), cache_dir=cache)
    assert after.listing.is_packed
    assert (after.config, after.info) == (before.config, before.info)


def test_listing(model_path: Path, cache: Path) -> None:
    assert [listing.name for listing in list_models(cache)] == ["smollm2", "gemma3-270m"]
    load(str(model_path), cache_dir=cache)
    tiny = list_models(cache)[-1]
    assert (tiny.name, tiny.is_packed, tiny.download_bytes) == ("tiny", True, None)
    assert tiny.cached_bytes > 100_000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "smolm2",
            r"smolm2: no such model, file or directory \(did you mean smollm2\?\)\. Known names: smollm2, gemma3-270m",
        ),
        ("./missing.gguf", r"missing\.gguf: no such model, file or directory.*a hub id \(owner/name\) also work"),
    ],
)
def test_unknown_names(name: str, message: str, cache: Path) -> None:
    with pytest.raises(ModelError, match=message):
        load(name, cache_dir=cache)


def test_a_quantised_file_keeps_its_width(tmp_path: Path, cache: Path) -> None:
    options = GgufOptions(quantization=GGMLQuantizationType.Q4_0)
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), options)
    info = load(str(path), cache_dir=cache).info
    assert set(info.weight_bytes) == {"q4", "vectors"}
    assert info.license == "not stated"
    assert info.file_bytes == path.stat().st_size
