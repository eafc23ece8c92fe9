"""Rotary frequencies: base and scaling scheme in, `Rope` out. Knows no file format.

Frequencies are rounded to float32 here, once, so that the core and every reference turn by the same angles.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.core.errors import ModelError
from sojourn.models.config import Rope

_F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Linear:
    factor: float


@dataclass(frozen=True, slots=True)
class Llama3:
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class Yarn:
    factor: float
    original_context: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def attention_factor_or_default(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(max(self.factor, 1.0)) + 1.0


@dataclass(frozen=True, slots=True)
class Divided:
    """Each frequency divided by its own factor: what GGUF files carry as `rope_freqs.weight`."""

    factors: tuple[float, ...]


Scaling = Linear | Llama3 | Yarn | Divided


def make_rope(base: float, head_dim: int, scaling: Scaling | None = None) -> Rope:
    if head_dim <= 0 or head_dim % 2 or base <= 0:
        raise ModelError(
            f"head dimension {head_dim} with rotary base {base} cannot be rotated; an even one and a positive base can"
        )
    frequencies: _F64 = base ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    attention_factor = 1.0
    match scaling:
        case None:
            pass
        case Linear(factor):
            frequencies = frequencies / factor
        case Divided(factors):
            frequencies = frequencies / np.array(factors, np.float64)
        case Llama3():
            frequencies = _llama3(frequencies, scaling)
        case Yarn():
            frequencies = _yarn(frequencies, base, head_dim, scaling)
            attention_factor = scaling.attention_factor_or_default()
    return Rope(tuple(float(f) for f in frequencies.astype(np.float32)), attention_factor)


def _llama3(frequencies: _F64, scaling: Llama3) -> _F64:
    """Long wavelengths are slowed by `factor`, short ones kept, those between blended."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = np.clip(kept, 0.0, 1.0)
    return share * frequencies + (1 - share) * frequencies / scaling.factor


def _yarn(frequencies: _F64, base: float, head_dim: int, scaling: Yarn) -> _F64:
    """Dimensions that turn often are kept, those that turn less than once are interpolated, a ramp between."""

    def dimension_with(turns: float) -> float:
        return head_dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension_with(scaling.beta_fast), dimension_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    interpolated = np.clip((np.arange(head_dim // 2) - low) / span, 0.0, 1.0)
    blended: _F64 = frequencies / scaling.factor * interpolated + frequencies * (1 - interpolated)
    return blended
