"""Every architecture against transformers: random checkpoints through our loaders and both back ends, f32 all the way."""

from pathlib import Path

import numpy as np
import pytest

from tests.oracle import tiny
from tests.oracle import transformers_models as oracle
from tests.oracle.driver import Driver, MakeBackend, assert_greedy_equal, native_exact, reference

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]  # other people's warnings are not ours

GREEDY = 60


@pytest.mark.parametrize("make_backend", [reference, native_exact])
@pytest.mark.parametrize("name", tiny.NAMES)
def test_logits_and_greedy_tokens_equal_transformers(name: str, make_backend: MakeBackend, tmp_path: Path) -> None:
    tiny.write_checkpoint(name, tmp_path)
    model = oracle.tiny_oracle(tmp_path)
    prompt = tiny.prompt(name)
    driver = Driver(make_backend(tiny.load_f32(tmp_path), len(prompt) + GREEDY))

    ours = np.concatenate(list(driver.chunks(prompt, 37)))

    theirs = oracle.logits_at(model, prompt, range(len(prompt)))
    assert np.abs(ours - theirs).max() < 1e-3
    tokens, margins = oracle.greedy(model, prompt, GREEDY)
    assert_greedy_equal([int(np.argmax(ours[-1])), *driver.best_along(tokens[:-1])], tokens, margins)
