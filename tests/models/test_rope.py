"""Rotary scaling schemes against their definitions."""

import math

import numpy as np
import pytest

from sojourn.core.errors import ModelError
from sojourn.models.rope import Divided, Linear, Llama3, Yarn, make_rope


def test_plain_frequencies() -> None:
    rope = make_rope(10000.0, 8)
    np.testing.assert_allclose(rope.inv_freq, [1.0, 0.1, 0.01, 0.001], rtol=1e-7)
    assert rope.attention_factor == 1.0


def test_frequencies_are_float32_numbers() -> None:
    assert all(float(np.float32(f)) == f for f in make_rope(123456.0, 64).inv_freq)


def test_linear_and_divided() -> None:
    plain = np.array(make_rope(10000.0, 8).inv_freq)
    np.testing.assert_allclose(make_rope(10000.0, 8, Linear(4.0)).inv_freq, plain / 4, rtol=1e-6)
    factors = (1.0, 2.0, 4.0, 8.0)
    np.testing.assert_allclose(make_rope(10000.0, 8, Divided(factors)).inv_freq, plain / factors, rtol=1e-6)


def test_llama3_keeps_short_waves_slows_long_ones_and_blends_between() -> None:
    scaling = Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)
    plain = make_rope(500000.0, 128).inv_freq
    for before, after in zip(plain, make_rope(500000.0, 128, scaling).inv_freq, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4.0:
            assert after == before
        elif wavelength > 8192 / 1.0:
            assert after == pytest.approx(before / 8, rel=1e-6)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            assert after == pytest.approx((1 - smooth) * before / 8 + smooth * before, rel=1e-5)


def test_yarn_keeps_fast_dimensions_and_slows_the_slow_ones() -> None:
    plain = make_rope(10000.0, 128).inv_freq
    rope = make_rope(10000.0, 128, Yarn(factor=4.0, original_context=4096))
    assert rope.inv_freq[0] == plain[0]
    assert rope.inv_freq[-1] == pytest.approx(plain[-1] / 4, rel=1e-6)
    ratios = np.array(plain) / rope.inv_freq
    assert (np.diff(ratios) >= -1e-6).all()
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert make_rope(10000.0, 128, Yarn(4.0, 4096, attention_factor=1.5)).attention_factor == 1.5


def test_an_odd_head_dimension_cannot_be_rotated() -> None:
    with pytest.raises(ModelError, match="head dimension 7"):
        make_rope(10000.0, 7)
