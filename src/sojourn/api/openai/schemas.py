"""Bodies of the OpenAI surfaces: every field of theirs is honoured, accepted without effect (and the answer's header says
so), or refused by name; ours come beside them. A field that nobody knows is as one without effect: newer clients send what
this server has not heard of. `serve --strict` refuses it. Inside messages and options unknown fields are always refused.
"""

from collections.abc import Iterable
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from sojourn.api.openai.refusals import INVALID_VALUE, UNSUPPORTED_VALUE, Unsupported, refusal
from sojourn.api.schemas import SESSION_ID_PATTERN, TOKENS_MAX, Strict
from sojourn.core.errors import ClientError

CHOICES_MAX = 128
CONTENT_MAX = 4_000_000  # characters of one message
COMPLETION_TOKENS_DEFAULT = 16  # as OpenAI's own
TEMPERATURE_DEFAULT = 1.0
TOP_P_DEFAULT = 1.0
Prompt = str | list[int]
# Accepted without effect here; `x-ignored-parameters` of the answer names those that were sent.
IGNORED = (
    "user",
    "safety_identifier",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "verbosity",
    "prediction",
    "moderation",
    "prompt_cache_options",
)
UNKNOWN_SHOWN = 16  # names in the header
TOOLS = "tools and functions"


class StreamOptions(Strict):
    include_usage: bool | None = Field(default=None, description="a last chunk with the usage and no choices")
    include_obfuscation: bool | None = Field(default=None, description="pad every chunk to hide the lengths of tokens")


class SharedBody(Strict):
    """What completions and chat completions have in common."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1, max_length=512, description="as GET /v1/models names it")
    n: int | None = Field(default=None, ge=1, le=CHOICES_MAX, description="choices; they share the prompt")
    max_tokens: int | None = Field(default=None, ge=1, le=TOKENS_MAX)
    temperature: float | None = Field(default=None, description="0 to 100, below 0.001: greedy; default 1")
    top_p: float | None = Field(default=None, description="0.000001 to 1; default 1")
    stop: str | list[str] | None = Field(default=None, description="up to 16 strings of 1 to 1,000 characters")
    seed: int | None = Field(default=None, description="0 to 2**64 - 1; the same seed gives the same choices")
    presence_penalty: float | None = Field(default=None, description="-2 to 2")
    frequency_penalty: float | None = Field(default=None, description="-2 to 2")
    logit_bias: dict[str, float] | None = Field(default=None, description="token id to -100 .. 100")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # ours
    session_id: str | None = Field(
        default=None, pattern=SESSION_ID_PATTERN, description="only what is new is sent; also as X-Session-ID"
    )
    turn: int | None = Field(default=None, ge=0, description="of a session: repeated, it is answered and not run again")
    wait: bool = Field(default=False, description="of a session: wait for the running turn instead of 409")
    top_k: int | None = Field(default=None, description="0: off")
    min_p: float | None = Field(default=None, description="0 (off) to below 1")
    repetition_penalty: float | None = Field(default=None, description="0.01 to 10; 1: off")
    ignore_eos: bool = False
    cache_salt: str | None = Field(
        default=None, min_length=1, max_length=256, description="KV is shared with requests of the same salt only"
    )
    return_token_ids: bool = Field(default=False, description="each choice says its token ids")
    # accepted without effect
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = Field(default=None, description="nothing is stored")
    service_tier: str | None = None
    prompt_cache_key: str | None = Field(default=None, description="every prefix is cached; see cache_salt")
    prompt_cache_retention: str | None = None

    @property
    def num_choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def is_obfuscated(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_obfuscation)

    @property
    def ignored(self) -> list[str]:
        """The fields that were sent and have no effect; names that nobody knows as a header can carry them."""
        sent = self.model_dump(include=set(IGNORED), exclude_none=True)
        return [name for name in IGNORED if name in sent] + [quote(name)[:64] for name in self.unknown[:UNKNOWN_SHOWN]]

    @property
    def unknown(self) -> list[str]:
        """The fields that nobody knows, in the order they came."""
        return list(self.model_extra or ())

    def check_known(self, *, is_strict: bool) -> None:
        """Raise ClientError for a field that nobody knows, where the server is strict."""
        if is_strict and self.unknown:
            name = self.unknown[0]
            raise ClientError(
                f"{name:.64} is a field that nobody knows here", param=name[:64], code="unknown_parameter"
            )

    def session(self, header: str | None) -> str | None:
        """The session that body and header name. Raises ClientError where fields do not go together."""
        if self.session_id is not None and header is not None and self.session_id != header:
            raise ClientError(
                f"the body names session {self.session_id}, X-Session-ID names {header}", param="session_id"
            )
        if self.stream_options is not None and not self.stream:
            raise ClientError("stream_options is for streams only: stream is not true", param="stream_options")
        name = header if self.session_id is None else self.session_id
        if name is None and self.turn is not None:
            raise ClientError("turn is a session's: give session_id", param="turn")
        if name is None and self.wait:
            raise ClientError("wait is a session's: give session_id", param="wait")
        if name is not None and self.num_choices > 1:
            raise ClientError("a session has one history: n must be 1", param="n")
        return name

    def sampling(self) -> dict[str, object]:
        """The fields of `api.schemas.Sampling` that are the same here; those not given have OpenAI's defaults."""
        fields: dict[str, object] = {
            "temperature": TEMPERATURE_DEFAULT if self.temperature is None else self.temperature,
            "top_p": TOP_P_DEFAULT if self.top_p is None else self.top_p,
            "stop": self.stop,
            "seed": self.seed,
            "logit_bias": self.logit_bias,
            "ignore_eos": self.ignore_eos,
        }
        given = {
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return fields | {name: value for name, value in given.items() if value is not None}


# -- completions


def _prompts(value: object) -> list[Prompt]:
    """One prompt or a list of them, as a list. A refusal names the place of what is neither text nor a token id."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise refusal(INVALID_VALUE, "prompt must be text, a list of texts, token ids, or a list of lists of token ids")
    if not value:
        raise refusal(INVALID_VALUE, "prompt is empty: it needs at least one token")
    if all(isinstance(one, str) for one in value):
        return list(value)
    if all(isinstance(one, list) for one in value):
        return [_ids(f"prompt[{index}]", one) for index, one in enumerate(value)]
    return [_ids("prompt", value)]


def _ids(where: str, values: Iterable[object]) -> list[int]:
    ids: list[int] = []
    for index, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= TOKENS_MAX:
            raise refusal(INVALID_VALUE, f"{where}[{index}] is {value!r:.40}: a token id is a whole number from 0")
        ids.append(value)
    return ids


_ID = {"type": "integer", "minimum": 0, "maximum": TOKENS_MAX}
_PROMPT_SCHEMA = {
    "description": "text, texts, token ids, or lists of token ids; each is a prompt of its own",
    "anyOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
        {"type": "array", "minItems": 1, "items": _ID},
        {"type": "array", "minItems": 1, "items": {"type": "array", "items": _ID}},
    ],
}


class CompletionBody(SharedBody):
    prompt: Annotated[list[Prompt], PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
    echo: bool | None = Field(default=None, description="the text begins with the prompt")
    logprobs: int | None = Field(
        default=None, ge=0, le=20, description="likeliest tokens beside the sampled one; with echo of the prompt's, too"
    )
    max_tokens: int | None = Field(default=None, ge=0, le=TOKENS_MAX, description="0 only with echo")
    best_of: Annotated[object, Unsupported("best_of: ask for n choices and choose")] = None
    suffix: Annotated[object, Unsupported("suffix: text is continued, not filled in")] = None


# -- chat


def _content(value: object) -> object:
    """Parts of type text, joined by newlines; text as it is."""
    if not isinstance(value, list):
        return value
    if not value:
        raise refusal(INVALID_VALUE, "content is an empty list of parts")
    texts: list[str] = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise refusal(INVALID_VALUE, f"content[{index}] is no part: an object with a type")
        if kind != "text":
            raise refusal(UNSUPPORTED_VALUE, f"content[{index}] is of type {kind:.40}: this server supports text only")
        if set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise refusal(INVALID_VALUE, f"content[{index}] of type text has one other field, text: a string")
        texts.append(part["text"])
    return "\n".join(texts)


def _role(value: object) -> object:
    if value in ("tool", "function"):
        raise refusal(UNSUPPORTED_VALUE, f"role {value}: this server does not support {TOOLS}")
    return value


_PART_SCHEMA = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT_SCHEMA = {
    "description": "text, or parts of type text, which are joined by newlines",
    "anyOf": [
        {"type": "string", "maxLength": CONTENT_MAX},
        {"type": "array", "minItems": 1, "items": _PART_SCHEMA},
    ],
}


class ChatMessageBody(Strict):
    """A message; what an earlier answer of this server had may be sent back as it came."""

    role: Annotated[Literal["system", "developer", "user", "assistant"], BeforeValidator(_role)] = Field(
        description="developer is another name of system"
    )
    content: Annotated[str, BeforeValidator(_content), WithJsonSchema(_CONTENT_SCHEMA)]
    name: Annotated[object, Unsupported("name: chat templates say no names")] = None
    refusal: Annotated[object, Unsupported("refusals")] = None
    audio: Annotated[object, Unsupported("audio")] = None
    annotations: Annotated[object, Unsupported("annotations", ([],))] = None
    tool_calls: Annotated[object, Unsupported(TOOLS, ([],))] = None
    tool_call_id: Annotated[object, Unsupported(TOOLS)] = None
    function_call: Annotated[object, Unsupported(TOOLS)] = None

    @property
    def spoken_role(self) -> Literal["system", "user", "assistant"]:
        return "system" if self.role == "developer" else self.role


class ChatBody(SharedBody):
    messages: list[ChatMessageBody] = Field(description="of a session: the new ones only; [] answers what was appended")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=TOKENS_MAX, description="another name of max_tokens; null: to the end of the context"
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20, description="only with logprobs: true")
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prediction: dict[str, object] | None = None
    tools: Annotated[object, Unsupported(TOOLS, ([],))] = None
    tool_choice: Annotated[object, Unsupported(TOOLS, ("none",))] = None
    parallel_tool_calls: Annotated[object, Unsupported(TOOLS)] = None
    functions: Annotated[object, Unsupported(TOOLS, ([],))] = None
    function_call: Annotated[object, Unsupported(TOOLS, ("none",))] = None
    response_format: Annotated[object, Unsupported("formats other than text", ({"type": "text"},))] = None
    modalities: Annotated[object, Unsupported("modalities other than text", (["text"],))] = None
    audio: Annotated[object, Unsupported("audio")] = None
    moderation: object = None
    web_search_options: Annotated[object, Unsupported("web search")] = None
    prompt_cache_options: object = Field(default=None, description="see cache_salt, and sessions")

    def check(self) -> None:
        """Raise ClientError where fields do not go together."""
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise ClientError("max_tokens and max_completion_tokens differ: give one", param="max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ClientError("top_logprobs needs logprobs: true", param="top_logprobs")

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
