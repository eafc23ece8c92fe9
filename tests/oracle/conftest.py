"""Models and text of the oracle tests. Modules that need torch are collected only where it is installed."""

from importlib.util import find_spec

import pytest

from sojourn.app.config import cache_dir
from sojourn.models.loading import load
from sojourn.models.packing import Weights
from sojourn.models.store import LoadedModel
from sojourn.models.tokenizer import Tokenizer
from tests.oracle.tiny import DATA

collect_ignore = [] if find_spec("torch") else ["test_tiny.py", "test_real.py"]


def prose_ids(model: LoadedModel) -> list[int]:
    """The text of tests/data/oracle in the model's tokens, without anything added."""
    tokenizer = Tokenizer(model.tokenizer_json, model.text)
    return tokenizer.encode((DATA / "prose.txt").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def smollm2_8bit() -> LoadedModel:
    return load("smollm2", cache_dir=cache_dir(), weights=Weights.EIGHT_BIT)


@pytest.fixture(scope="session")
def gemma3_f32() -> LoadedModel:
    return load("gemma3-270m", cache_dir=cache_dir(), weights=Weights.F32)


@pytest.fixture(scope="session")
def gemma3_8bit() -> LoadedModel:
    return load("gemma3-270m", cache_dir=cache_dir(), weights=Weights.EIGHT_BIT)
