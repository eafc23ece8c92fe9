"""The oracle: models of the transformers library, eager attention, f32. Tiny ones, and the real ones with our weights."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from sojourn.backends.protocol import F32
from sojourn.models.packed import PackedModel
from sojourn.models.packing import unpack
from tests.oracle.tiny import VOCABULARY

WINDOW = 48
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TINY: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, head_dim=16, num_hidden_layers=2, tie_word_embeddings=False),
    "llama_tied": LlamaConfig(**SHAPE, num_hidden_layers=2, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "llama3_rope": LlamaConfig(**SHAPE, head_dim=32, num_hidden_layers=2, rope_parameters=LLAMA3_ROPE),
    "mistral": MistralConfig(**SHAPE, head_dim=16, num_hidden_layers=2, sliding_window=WINDOW),
    "qwen2": Qwen2Config(**SHAPE, num_hidden_layers=2),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32, num_hidden_layers=2),
    # transformers' Gemma 3 reads an attention soft cap and never applies it, so that one cannot be compared here
    "gemma3": Gemma3TextConfig(
        **SHAPE,
        head_dim=16,
        num_hidden_layers=7,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        final_logit_softcapping=15.0,
    ),
}
# As their makers published them: nothing here comes from our loaders but the weights.
REAL: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(  # SmolLM2 135M
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    ),
    "gemma3": Gemma3TextConfig(  # Gemma 3 270M
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        sliding_window=512,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 3,
        query_pre_attn_scalar=256,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        tie_word_embeddings=True,
    ),
}


def tiny_oracle(folder: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    return model.eval()


def logits_at(model: PreTrainedModel, tokens: Sequence[int], positions: Sequence[int]) -> F32:
    with torch.no_grad():
        output = model(torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=torch.tensor(list(positions)))
    logits: NDArray = output.logits[0].numpy()
    return logits


def greedy(model: PreTrainedModel, tokens: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """Greedy tokens, and for each the distance from the best logit to the second."""
    settings = GenerationConfig(
        max_new_tokens=count, do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=0
    )
    model.generation_config = settings  # no end-of-sequence id: all `count` tokens are wanted
    ids = torch.tensor([list(tokens)])
    with torch.no_grad():
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    best = torch.topk(torch.cat(output.logits), 2).values
    return output.sequences[0, len(tokens) :].tolist(), (best[:, 0] - best[:, 1]).tolist()


MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
LLAMA_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
GEMMA_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


def _state_of(packed: PackedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Our weights under transformers' names; it stores Gemma's norm weights without their + 1."""
    gemma = packed.config.architecture == "gemma3"
    norms, added = (GEMMA_NORMS, 1.0) if gemma else (LLAMA_NORMS, 0.0)
    yield "model.embed_tokens.weight", torch.from_numpy(unpack(packed.matrices["embed"]))
    yield "model.norm.weight", torch.from_numpy(packed.vectors["final_norm"] - added)
    for i in range(packed.config.num_layers):
        for name, theirs in MATRICES.items():
            yield f"model.layers.{i}.{theirs}.weight", torch.from_numpy(unpack(packed.matrices[f"layers.{i}.{name}"]))
        for name, theirs in norms.items():
            vector = packed.vectors[f"layers.{i}.{name}"] - added
            yield f"model.layers.{i}.{theirs}.weight", torch.from_numpy(vector)


def real_oracle(packed: PackedModel) -> PreTrainedModel:
    """SmolLM2 or Gemma 3 270M as transformers runs it, on the dequantised weights of `packed`."""
    config = REAL[packed.config.architecture]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    missing, unexpected = model.load_state_dict(dict(_state_of(packed)), strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing  # tied
    assert not unexpected, unexpected
    return model.eval()
