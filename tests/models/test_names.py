"""What the words for a model mean, before anything is read."""

from pathlib import Path

import pytest

from sojourn.core.errors import ModelError
from sojourn.models.names import Kind, check_model, kind_of


def test_the_catalogue_then_paths_then_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    assert kind_of("smollm2") is Kind.CATALOG
    assert kind_of("owner") is Kind.FOLDER
    assert kind_of("owner/model-7b.Q4") is Kind.HUB
    (tmp_path / "owner" / "model.gguf").write_bytes(b"GGUF....")
    assert kind_of("owner/model.gguf") is Kind.FILE
    for none in ("owner/other.gguf", "nobody", "a/b/c"):
        with pytest.raises(ModelError, match="no such model"):
            kind_of(none)


def test_what_is_no_model_at_first_sight(tmp_path: Path) -> None:
    good, bad, folder = tmp_path / "good", tmp_path / "bad", tmp_path / "folder"
    good.write_bytes(b"GGUF....")
    bad.write_bytes(b"PK")
    folder.mkdir()
    check_model(str(good))
    check_model("gemma3-270m")
    for none, said in ((bad, "not a GGUF file"), (folder, "no config.json")):
        with pytest.raises(ModelError, match=said):
            check_model(str(none))
    (folder / "config.json").write_text("{}")
    check_model(str(folder))
