"""What quantised weights and f16 KV cost against f32, over real text: mean KL divergence and agreement of the best token."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from sojourn.backends.protocol import F32
from sojourn.models.store import LoadedModel
from tests.oracle.conftest import prose_ids
from tests.oracle.driver import Driver, native_exact, native_fast

KL_MAX = 0.01  # nats
AGREEMENT_MIN = 0.94
CHUNK = 64
POSITIONS = 2000
POSITIONS_SHORT = 320
PAIRS = [("smollm2", "smollm2_f32"), ("smollm2_8bit", "smollm2_f32"), ("gemma3_8bit", "gemma3_f32")]


@dataclass(frozen=True)
class Quality:
    kl: float
    agreement: float


def log_softmax(logits: F32) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def divergences(exact: Iterator[F32], fast: Iterator[F32]) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    for wanted, got in zip(exact, fast, strict=True):
        p, q = log_softmax(wanted), log_softmax(got)
        yield (np.exp(p) * (p - q)).sum(axis=-1), wanted.argmax(axis=-1) == got.argmax(axis=-1)


def compare(fast: LoadedModel, exact: LoadedModel, positions: int) -> Quality:
    tokens = prose_ids(fast)[:positions]
    assert len(tokens) == positions
    backends = native_exact(exact.packed, positions), native_fast(fast.packed, positions)
    runs = [Driver(backend).chunks(tokens, CHUNK) for backend in backends]
    kl, agree = zip(*divergences(*runs), strict=True)
    for backend in backends:
        backend.close()
    return Quality(float(np.concatenate(kl).mean()), float(np.concatenate(agree).mean()))


def check(request: pytest.FixtureRequest, fast: str, exact: str, positions: int) -> None:
    quality = compare(request.getfixturevalue(fast), request.getfixturevalue(exact), positions)
    print(f"\n{fast} with f16 KV, {positions} positions: KL {quality.kl:.4f}, best token equal {quality.agreement:.3f}")
    assert quality.kl <= KL_MAX
    assert quality.agreement >= AGREEMENT_MIN


@pytest.mark.oracle
@pytest.mark.parametrize(("fast", "exact"), PAIRS)
def test_quality_over_long_text(request: pytest.FixtureRequest, fast: str, exact: str) -> None:
    check(request, fast, exact, POSITIONS)


@pytest.mark.parametrize(("fast", "exact"), PAIRS[:1])
def test_quality_over_short_text(request: pytest.FixtureRequest, fast: str, exact: str) -> None:
    check(request, fast, exact, POSITIONS_SHORT)
