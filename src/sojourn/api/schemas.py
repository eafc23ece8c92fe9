"""Request bodies shared by surfaces: exact fields, exact types. What a field means and its bounds are `TurnOptions`'.

Unknown fields and values of another type are refused with the field's name; nothing is converted silently.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sojourn.api.options import TEMPERATURE_DEFAULT, TOP_P_DEFAULT, TurnOptions
from sojourn.core.errors import ClientError

TOKENS_MAX = 2**31 - 1
TokenId = Annotated[int, Field(ge=0, le=TOKENS_MAX)]
Length = Annotated[int, Field(ge=0, le=TOKENS_MAX)]
SESSION_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"


class Strict(BaseModel):
    """Base of every request body."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Sampling(Strict):
    """How a turn is sampled and when it stops; each field, its bounds and its default as in the library."""

    max_tokens: int | None = Field(default=None, description="1 or more; null: up to the end of the context")
    temperature: float = Field(default=TEMPERATURE_DEFAULT, description="0 to 100; below 0.001: greedy")
    top_p: float = Field(default=TOP_P_DEFAULT, description="0.000001 to 1")
    top_k: int = Field(default=0, description="0: off")
    min_p: float = Field(default=0.0, description="0 (off) to below 1")
    repetition_penalty: float = Field(default=1.0, description="0.01 to 10; 1: off")
    presence_penalty: float = Field(default=0.0, description="-2 to 2")
    frequency_penalty: float = Field(default=0.0, description="-2 to 2")
    logit_bias: dict[str, float] | None = Field(default=None, description="token id to -100 .. 100")
    seed: int | None = Field(default=None, description="0 to 2**64 - 1; null: another one every time")
    stop: str | list[str] | None = Field(default=None, description="up to 16 strings of 1 to 1,000 characters")
    logprobs: int | None = Field(
        default=None, description="0 to 20 likeliest tokens beside the sampled one; null: none"
    )
    ignore_eos: bool = False

    def options(self, vocab_size: int) -> TurnOptions:
        """The options, checked. Raises ClientError naming the field and its bound."""
        options = TurnOptions(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=None if self.logit_bias is None else bias_by_id(self.logit_bias),
            seed=self.seed,
            stop=() if self.stop is None else self.stop,
            logprobs=self.logprobs,
            ignore_eos=self.ignore_eos,
        )
        options.check(vocab_size=vocab_size)
        return options


def bias_by_id(biases: dict[str, float]) -> dict[int, float]:
    """JSON's keys are strings; a ClientError for one that is no token id."""
    by_id: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise ClientError(f"logit_bias has the key {key!r:.40}: a token id is a whole number", param="logit_bias")
        by_id[int(key)] = bias
    return by_id


class Usage(BaseModel):
    """Tokens. `prompt_tokens` counts the whole history and what was new; the cached ones of it were not computed again."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail
