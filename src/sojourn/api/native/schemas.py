"""Bodies of the native dialect. Types are exact; what has no meaning here is in `job.py`, by name."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from sojourn.api.schemas import SESSION_ID_PATTERN, TokenId

ONE, MANY = "one", "many"  # tags; never part of a field's name
RID_PATTERN = r"^[\x21-\x7e]{1,200}$"
Rid = Annotated[str, Field(pattern=RID_PATTERN)]


def _of_lists(value: object) -> str:
    return MANY if isinstance(value, list) and value and isinstance(value[0], list) else ONE


def _of_values(value: object) -> str:
    return MANY if isinstance(value, list) else ONE


class NativeBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SamplingBody(NativeBody):
    """Bounds and meaning are in docs/native-dialect.md. The last block is refused by name if it is set."""

    max_new_tokens: int | None = 128
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    n: int = 1
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None

    min_new_tokens: int = 0
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    stop_regex: str | list[str] | None = None
    custom_params: dict[str, object] | None = None


class SessionParamsBody(NativeBody):
    """The session to run in, and where in it."""

    id: str | None = None
    rid: str | None = None
    offset: int | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


IdsOrLists = Annotated[
    Annotated[list[TokenId], Tag(ONE)] | Annotated[list[list[TokenId]], Tag(MANY)], Discriminator(_of_lists)
]
OneOrMoreTexts = Annotated[Annotated[str, Tag(ONE)] | Annotated[list[str], Tag(MANY)], Discriminator(_of_values)]
OneOrMoreRids = Annotated[Annotated[Rid, Tag(ONE)] | Annotated[list[Rid], Tag(MANY)], Discriminator(_of_values)]
OneOrMoreSamplings = Annotated[
    Annotated[SamplingBody, Tag(ONE)] | Annotated[list[SamplingBody], Tag(MANY)], Discriminator(_of_values)
]


class GenerateBody(NativeBody):
    """A prompt, or a batch of them. Fields that are not listed may be sent as null."""

    model_config = ConfigDict(extra="allow", strict=True)

    text: OneOrMoreTexts | None = None
    input_ids: IdsOrLists | None = None
    sampling_params: OneOrMoreSamplings | None = None
    rid: OneOrMoreRids | None = None
    stream: bool = False
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool = False
    session_params: SessionParamsBody | None = None
    session_id: str | None = None
    cache_salt: str | None = Field(default=None, max_length=256)
    extra_key: str | None = Field(default=None, max_length=256)


class OpenSessionBody(NativeBody):
    model_config = ConfigDict(extra="ignore", strict=True)

    capacity_of_str_len: int
    session_id: Annotated[str, Field(pattern=SESSION_ID_PATTERN)] | None = None
    streaming: bool | None = None
    timeout: float | None = Field(default=None, gt=0, le=31_536_000, allow_inf_nan=False)


class CloseSessionBody(NativeBody):
    model_config = ConfigDict(extra="ignore", strict=True)

    session_id: str


class AbortBody(NativeBody):
    model_config = ConfigDict(extra="ignore", strict=True)

    rid: str = ""
    abort_all: bool = False


class ClosedSession(BaseModel):
    """`deferred`: a turn runs; the session ends with it. `freed_pages` is known if not."""

    session_id: str
    deferred: bool
    freed_pages: int | None


class Message(BaseModel):
    message: str


class Refused(BaseModel):
    """What is asked cannot be done."""

    error: Message


class Invalid(BaseModel):
    """The body has another shape than it should."""

    object: Literal["error"]
    message: str
    type: str
    param: str | None
    code: int
