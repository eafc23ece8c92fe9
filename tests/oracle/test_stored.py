"""What transformers answered, stored (`make_references.py`), against our back ends. Needs no torch."""

from pathlib import Path

import numpy as np
import pytest

from sojourn.models.store import LoadedModel
from tests.oracle import tiny
from tests.oracle.driver import Driver, MakeBackend, assert_greedy_equal, native_exact, reference


@pytest.mark.parametrize("make_backend", [reference, native_exact])
@pytest.mark.parametrize("name", tiny.NAMES)
def test_tiny_checkpoint_of_each_architecture(name: str, make_backend: MakeBackend, tmp_path: Path) -> None:
    tiny.write_checkpoint(name, tmp_path)
    prompt = tiny.prompt(name)
    driver = Driver(make_backend(tiny.load_f32(tmp_path), len(prompt)))
    with np.load(tiny.DATA / "tiny.npz") as stored:
        theirs = stored[f"{name}_logits"]
    assert np.abs(driver.logits_at(prompt, tiny.POSITIONS, chunk=37) - theirs).max() < 1e-3


def check_real(loaded: LoadedModel, name: str) -> None:
    with np.load(tiny.DATA / f"{name}.npz") as file:
        stored = {key: file[key] for key in file}
    prompt, greedy = stored["prompt"].tolist(), stored["greedy"].tolist()
    driver = Driver(native_exact(loaded.packed, len(prompt) + len(greedy)))
    ours = driver.logits_at(prompt, stored["positions"].tolist())
    selected = np.take_along_axis(ours, stored["top_ids"], axis=-1)
    assert np.abs(selected - stored["top_logits"]).max() < 1e-3
    assert ours.max(axis=-1) == pytest.approx(stored["top_logits"][:, 0], abs=1e-3)  # nothing else is above them
    assert_greedy_equal([int(np.argmax(ours[-1])), *driver.best_along(greedy[:-1])], greedy, stored["margins"].tolist())


def test_smollm2(smollm2_f32: LoadedModel) -> None:
    check_real(smollm2_f32, "smollm2")


@pytest.mark.slow
def test_gemma3(gemma3_f32: LoadedModel) -> None:
    check_real(gemma3_f32, "gemma3-270m")
