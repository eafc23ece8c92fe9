"""config.json of a Hugging Face model as our configuration: one mapping per architecture, both styles of rotary fields.

Older files have `rope_theta`, `rope_scaling` and `rope_local_base_freq`; files of transformers 5 have `rope_parameters`,
for Gemma 3 one per layer type. What would be computed wrongly is refused by name. Knows no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sojourn.core.errors import ModelError
from sojourn.models.config import Activation, AttentionConfig, ModelConfig, Rope
from sojourn.models.rope import Linear, Llama3, Scaling, Yarn, make_rope

# model_type -> architecture; Gemma 3 with vision nests its text model, whose weights alone are read
MODEL_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
}
_ACTIVATIONS = {"silu": Activation.SILU, "swish": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}
# What the configuration classes assume where a file is silent.
_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "max_window_layers": 28, "sliding_window": 4096},
    "qwen3": {"max_position_embeddings": 32768, "max_window_layers": 28, "sliding_window": 4096, "head_dim": 128},
    "gemma3": {
        "hidden_activation": "gelu_pytorch_tanh",
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
}
_COMMON_DEFAULTS: dict[str, object] = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0}
_REFUSED_WHEN_SET = ("quantization_config", "use_bidirectional_attention", "num_local_experts")


@dataclass(frozen=True, slots=True, eq=False)
class ConfigFile:
    """Typed access to the fields of one config.json; an error names the file and the field."""

    path: Path
    fields: Mapping[str, object]

    def get(self, name: str) -> object | None:
        return self.fields.get(name)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{name} {'is missing' if value is None else f'is {value!r:.60}, not a number'}")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value != int(value) or value < 0:
            raise self.error(f"{name} is {value}, not a count")
        return int(value)

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.path}: {text}")


def open_config(path: Path, raw: Mapping[str, object]) -> tuple[str, ConfigFile]:
    """(architecture, fields with the architecture's defaults). Raises ModelError for what is not supported."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise ModelError(f"{path}: model_type is {model_type!r}, which is not supported; {', '.join(MODEL_TYPES)} are")
    architecture = MODEL_TYPES[model_type]
    nested = raw.get("text_config")
    own = {**raw, **nested} if isinstance(nested, dict) else dict(raw)
    for name in _REFUSED_WHEN_SET:
        if own.get(name):
            raise ModelError(
                f"{path}: {name} is set, which is not supported; use an unquantised, causal, dense checkpoint"
            )
    return architecture, ConfigFile(path, {**_COMMON_DEFAULTS, **_DEFAULTS[architecture], **own})


def read_config(architecture: str, file: ConfigFile, name: str, *, has_head: bool, has_qkv_bias: bool) -> ModelConfig:
    gemma = architecture == "gemma3"
    hidden = file.integer("hidden_size")
    activation = file.get("hidden_activation" if gemma else "hidden_act") or "silu"
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise file.error(f"activation {activation!r} is not supported; {', '.join(_ACTIVATIONS)} are")
    tied = bool(file.get("tie_word_embeddings"))
    return ModelConfig(
        architecture=architecture,
        name=name,
        vocab_size=file.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=file.integer("intermediate_size"),
        num_layers=file.integer("num_hidden_layers"),
        context_length=file.integer("max_position_embeddings"),
        rms_norm_eps=float(np.float32(file.number("rms_norm_eps"))),  # as GGUF stores it
        activation=_ACTIVATIONS[activation],
        attention=_read_attention(architecture, file, hidden, has_qkv_bias),
        tied_embeddings=tied or (not has_head and "tie_word_embeddings" not in file.fields),
        post_norms=gemma,
        embedding_scale=float(np.float32(hidden**0.5)) if gemma else 1.0,
        logit_softcap=file.number("final_logit_softcapping", 0.0),
    )


def _read_attention(architecture: str, file: ConfigFile, hidden: int, has_qkv_bias: bool) -> AttentionConfig:
    gemma = architecture == "gemma3"
    num_heads = file.integer("num_attention_heads")
    num_kv_heads = file.integer("num_key_value_heads", num_heads)
    if not num_heads or not num_kv_heads or num_heads % num_kv_heads:
        raise file.error(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    head_dim = file.integer("head_dim", hidden // num_heads)
    slides = _sliding_layers(architecture, file)
    rope, rope_sliding = _read_ropes(file, head_dim, with_local=gemma)
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        query_scale=(file.number("query_pre_attn_scalar") if gemma else head_dim) ** -0.5,
        rope=rope,
        rope_sliding=rope_sliding,
        sliding_window=file.integer("sliding_window") if any(slides) else 0,
        layer_slides=slides,
        qk_norm=architecture in ("qwen3", "gemma3"),
        qkv_bias=architecture == "qwen2" or has_qkv_bias,
        logit_softcap=file.number("attn_logit_softcapping", 0.0),
    )


def _sliding_layers(architecture: str, file: ConfigFile) -> tuple[bool, ...]:
    num_layers = file.integer("num_hidden_layers")
    if not file.get("sliding_window"):
        return (False,) * num_layers
    if architecture in ("qwen2", "qwen3") and not file.get("use_sliding_window"):
        return (False,) * num_layers
    kinds = file.get("layer_types")
    if isinstance(kinds, list):
        strange = set(map(str, kinds)) - {"full_attention", "sliding_attention"}
        if strange or len(kinds) != num_layers:
            raise file.error(
                f"layer_types has {len(kinds)} entries for {num_layers} layers, unsupported kinds: {sorted(strange)}"
            )
        return tuple(kind == "sliding_attention" for kind in kinds)
    match architecture:
        case "gemma3":
            period = file.integer("sliding_window_pattern", file.integer("_sliding_window_pattern", 6))
            return tuple((layer + 1) % period != 0 for layer in range(num_layers))
        case "mistral":
            return (True,) * num_layers
        case "qwen2" | "qwen3":
            first = file.integer("max_window_layers")
            return tuple(layer >= first for layer in range(num_layers))
        case _:
            return (False,) * num_layers  # Llama's classes ignore the field


def _read_ropes(file: ConfigFile, head_dim: int, *, with_local: bool) -> tuple[Rope, Rope | None]:
    """(rope of full layers, rope of sliding layers where it differs)."""
    parameters = file.get("rope_parameters")
    if not isinstance(parameters, dict):
        scaling = file.get("rope_scaling")
        own = ConfigFile(
            file.path, {**(scaling if isinstance(scaling, dict) else {}), "rope_theta": file.number("rope_theta")}
        )
        rope = _read_rope(own, file, head_dim)
        return rope, make_rope(file.number("rope_local_base_freq", 10000.0), head_dim) if with_local else None
    by_kind = {kind: entry for kind, entry in parameters.items() if isinstance(entry, dict)}
    if not by_kind:
        rope = _read_rope(ConfigFile(file.path, parameters), file, head_dim)
        return rope, make_rope(10000.0, head_dim) if with_local else None
    if not {"full_attention", "sliding_attention"} <= by_kind.keys():
        raise file.error(f"rope_parameters has {sorted(by_kind)}; full_attention and sliding_attention are needed")
    full, local = (ConfigFile(file.path, by_kind[kind]) for kind in ("full_attention", "sliding_attention"))
    return _read_rope(full, file, head_dim), _read_rope(local, file, head_dim)


def _read_rope(own: ConfigFile, file: ConfigFile, head_dim: int) -> Rope:
    if own.number("partial_rotary_factor", file.number("partial_rotary_factor", 1.0)) != 1.0:
        raise file.error("partial_rotary_factor is not 1, which is not supported")
    base = own.number("rope_theta", file.number("rope_theta"))
    return make_rope(base, head_dim, _read_scaling(own, file))


def _read_scaling(own: ConfigFile, file: ConfigFile) -> Scaling | None:
    kind = own.get("rope_type") or own.get("type") or "default"
    match kind:
        case "default":
            return None
        case "linear":
            return Linear(own.number("factor"))
        case "llama3":
            return Llama3(
                own.number("factor"),
                own.number("low_freq_factor"),
                own.number("high_freq_factor"),
                own.integer("original_max_position_embeddings"),
            )
        case "yarn" if own.get("mscale") is None and own.get("mscale_all_dim") is None:
            factor = own.get("attention_factor")
            return Yarn(
                own.number("factor"),
                own.integer("original_max_position_embeddings", file.integer("max_position_embeddings")),
                None if factor is None else own.number("attention_factor"),
                own.number("beta_fast", 32.0),
                own.number("beta_slow", 1.0),
                own.get("truncate") is not False,
            )
    raise file.error(f"rope scaling {kind!r} is not supported; default, linear, llama3 and plain yarn are")
