"""Where sessions are kept: the options, the file of a model, and the sentences of what cannot be used."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.model_files import GgufOptions, tiny_model, write_gguf

from sojourn.app.config import data_dir
from sojourn.app.keeping import open_recorder, spoken_keeping, store_path
from sojourn.app.store_options import StoreOptions
from sojourn.core.errors import ClientError
from sojourn.models.fingerprint import fingerprint_of
from sojourn.models.loading import load
from sojourn.models.packing import Weights
from sojourn.models.store import LoadedModel
from sojourn.sessions.session import Session
from sojourn.sessions.store import Durability, StoreError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return loaded(tmp_path_factory.mktemp("model"))


def loaded(folder: Path, name: str = "tiny", *, seed: int = 1, weights: Weights | None = None) -> LoadedModel:
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_gguf(path, tiny_model("llama", seed=seed), GgufOptions())
    return load(str(path), cache_dir=folder / "cache", weights=weights)


def now() -> float:
    return 5.0


def keep_one(options: StoreOptions, model: LoadedModel) -> Path:
    recorder = open_recorder(options, model, now)
    recorder.load()
    recorder.added(Session("mine", "", None))
    recorder.close()
    return store_path(options, model)


def test_what_is_kept_is_found_again_by_the_same_model_only(model: LoadedModel, tmp_path: Path) -> None:
    options = StoreOptions(Durability.TURN, str(tmp_path / "data"))
    options.check()
    path = keep_one(options, model)
    assert path.is_relative_to(tmp_path / "data")
    assert (path.stat().st_mode & 0o077, path.parent.stat().st_mode & 0o077) == (0, 0), "nobody else's to read"
    again = open_recorder(options, model, now)
    assert [stored.session_id for stored in again.load()] == ["mine"]
    again.close()
    other = open_recorder(options, loaded(tmp_path, seed=2), now)
    assert other.load() == []
    other.close()


def test_a_model_is_known_by_what_it_is_and_not_by_its_name_or_width(model: LoadedModel, tmp_path: Path) -> None:
    moved = loaded(tmp_path, "another-name")
    assert fingerprint_of(moved) == fingerprint_of(model)
    assert fingerprint_of(loaded(tmp_path, "another-name", weights=Weights("8bit"))) == fingerprint_of(model)
    assert fingerprint_of(loaded(tmp_path, "other-weights", seed=2)) != fingerprint_of(model)


def test_nothing_is_kept_and_no_file_made_unless_asked_for(model: LoadedModel, tmp_path: Path) -> None:
    options = StoreOptions(Durability.NONE, str(tmp_path / "data"))
    options.check()
    recorder = open_recorder(options, model, now)
    recorder.added(Session("mine", "", None))
    recorder.close()
    assert not (tmp_path / "data").exists()
    assert options.idle_max_s is None
    assert spoken_keeping(options, model, 0).startswith("none")


def test_options_have_bounds(tmp_path: Path) -> None:
    good = StoreOptions(Durability.TURN, str(tmp_path))
    assert good.idle_max_s == 30 * 86_400
    (tmp_path / "file").write_text("")
    cases: list[tuple[StoreOptions, str]] = [
        (replace(good, mib_max=0), "store_mib"),
        (replace(good, days_max=0.0), "store_days"),
        (replace(good, days_max=float("nan")), "store_days"),
        (replace(good, data_dir=str(tmp_path / "file" / "sub")), "data_dir"),
        (replace(good, data_dir="/proc/sojourn"), "data_dir"),
    ]
    for options, param in cases:
        with pytest.raises(ClientError) as caught:
            options.check()
        assert caught.value.param == param


def test_the_data_folder_is_named_by_the_environment() -> None:
    assert data_dir({"SOJOURN_DATA": "/a", "XDG_DATA_HOME": "/b"}) == Path("/a")
    assert data_dir({"XDG_DATA_HOME": "/b"}) == Path("/b/sojourn")
    assert data_dir({}) == Path("~/.local/share/sojourn").expanduser()


def put_a_folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()


def say_it_is_newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE schema SET version = 99")
    db.close()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (put_a_folder_there, "cannot be made"),
        (say_it_is_newer, "newer Sojourn"),
        (lambda path: path.write_bytes(b"x" * 9000), "no session store"),
        (lambda path: path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 9000), "damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    model: LoadedModel, tmp_path: Path, spoil: Callable[[Path], object], sentence: str
) -> None:
    options = StoreOptions(Durability.TOKEN, str(tmp_path))
    spoil(keep_one(options, model))
    with pytest.raises(StoreError, match=sentence):
        open_recorder(options, model, now).load()
