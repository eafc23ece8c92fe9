"""Types of the compiled core (native/python/module.cpp)."""

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from sojourn.backends.protocol import F32, I32, I64, U64

def cpu_features() -> dict[str, bool]: ...

class Activation(Enum):
    SILU = 0
    GELU_TANH = 1

class Rope:
    def __init__(self, inv_freq: list[float], attention_factor: float) -> None: ...

class ModelConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    context_length: int
    rms_norm_eps: float
    activation: Activation
    embedding_scale: float
    logit_softcap: float
    tied_embeddings: bool
    post_norms: bool
    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_scale: float
    qk_norm: bool
    qkv_bias: bool
    attention_softcap: float
    sliding_window: int
    layer_slides: list[bool]
    rope: Rope
    rope_sliding: Rope
    def __init__(self) -> None: ...

class Weights:
    """Becomes a core's; empty afterwards. Keeps the arrays alive."""

    def __init__(self, config: ModelConfig) -> None: ...
    def add_matrix(
        self,
        name: str,
        kind: str,
        rows: int,
        cols: int,
        data: NDArray[np.uint8],
        scales: NDArray[np.uint16] | None,
        mins: NDArray[np.uint16] | None,
    ) -> None: ...
    def add_vector(self, name: str, data: F32) -> None: ...

class SamplingArrays:
    def __init__(
        self,
        temperature: F32,
        top_k: I32,
        top_p: F32,
        min_p: F32,
        repetition_penalty: F32,
        presence_penalty: F32,
        frequency_penalty: F32,
        seeds: U64,
        positions: I64,
        bias_offsets: I64,
        bias_ids: I32,
        bias_values: F32,
        history_offsets: I64,
        history: I32,
        history_prompt: I32,
        known: I32,
        num_logprobs: int,
    ) -> None: ...

class Core:
    def __init__(
        self,
        weights: Weights,
        page_size: int,
        full_pages: int,
        sliding_pages: int,
        half_kv: bool,
        threads: int,
        sequences: int,
        instruction_set: str,
    ) -> None: ...
    @property
    def instruction_set(self) -> str: ...
    def page_bytes(self, pool: int) -> int: ...
    def read_pages(self, pool: int, pages: I32) -> NDArray[np.uint8]: ...
    def write_pages(self, pool: int, pages: I32, data: NDArray[np.uint8]) -> None: ...
    def step(
        self,
        tokens: I32,
        sequences: I32,
        starts: I32,
        lengths: I32,
        edits: I32,
        logit_rows: I32,
        sampling: SamplingArrays | None,
        want_logits: bool,
    ) -> tuple[I32, F32, I32, F32, F32]:
        """Drawn tokens, their log-probabilities, best ids with theirs, and logits; empty where not asked for."""
