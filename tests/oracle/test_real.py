"""The two real models against transformers on the same dequantised weights: logits, and 200 greedy tokens on five prompts."""

import numpy as np
import pytest
from transformers import PreTrainedModel

from sojourn.models.store import LoadedModel
from tests.oracle import transformers_models as oracle
from tests.oracle.conftest import prose_ids
from tests.oracle.driver import Driver, assert_greedy_equal, native_exact

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

GREEDY = 200
# (first token of the text, tokens of the prompt)
SMOLLM2_PROMPTS = [(0, 12), (300, 65), (900, 256), (1200, 700), (0, 2000)]
GEMMA3_PROMPTS = [(0, 1510), (150, 1537), (300, 1600), (450, 1650), (0, 2000)]  # three windows and more


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2_f32: LoadedModel) -> PreTrainedModel:
    return oracle.real_oracle(smollm2_f32.packed)


@pytest.fixture(scope="module")
def gemma3_oracle(gemma3_f32: LoadedModel) -> PreTrainedModel:
    return oracle.real_oracle(gemma3_f32.packed)


def check(loaded: LoadedModel, model: PreTrainedModel, start: int, length: int) -> None:
    text = prose_ids(loaded)
    assert len(text) >= start + length
    prompt = text[start : start + length]
    positions = sorted({*range(0, length, 1 + length // 100), length - 1})  # all logits of all positions are gigabytes
    backend = native_exact(loaded.packed, length + GREEDY)
    driver = Driver(backend)

    ours = driver.logits_at(prompt, positions)

    theirs = oracle.logits_at(model, prompt, positions)
    difference = float(np.abs(ours - theirs).max())
    print(f"\n{loaded.packed.config.name}, {length} tokens: largest difference of a logit {difference:.1e}")
    assert difference < 1e-3
    tokens, margins = oracle.greedy(model, prompt, GREEDY)
    assert_greedy_equal([int(np.argmax(ours[-1])), *driver.best_along(tokens[:-1])], tokens, margins)
    backend.close()


@pytest.mark.parametrize(("start", "length"), SMOLLM2_PROMPTS)
def test_smollm2(smollm2_f32: LoadedModel, smollm2_oracle: PreTrainedModel, start: int, length: int) -> None:
    check(smollm2_f32, smollm2_oracle, start, length)


@pytest.mark.parametrize(("start", "length"), GEMMA3_PROMPTS)
def test_gemma3(gemma3_f32: LoadedModel, gemma3_oracle: PreTrainedModel, start: int, length: int) -> None:
    check(gemma3_f32, gemma3_oracle, start, length)
