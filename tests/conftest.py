"""The real models, for tests that need them. Fetched and packed on first use into the user's cache, and kept there."""

import signal

import pytest

from sojourn.app.config import cache_dir
from sojourn.models.loading import load
from sojourn.models.packing import Weights
from sojourn.models.store import LoadedModel

# A runner in the background may have been started with SIGINT ignored, and what it starts would inherit that: then
# Ctrl-C could not be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2 135M Instruct, Q4_1."""
    return load("smollm2", cache_dir=cache_dir())


@pytest.fixture(scope="session")
def smollm2_f32() -> LoadedModel:
    """The same weights as 32-bit floats: the exact path."""
    return load("smollm2", cache_dir=cache_dir(), weights=Weights.F32)


@pytest.fixture(scope="session")
def gemma3() -> LoadedModel:
    """Gemma 3 270M, a base model with sliding windows and no chat template."""
    return load("gemma3-270m", cache_dir=cache_dir())
