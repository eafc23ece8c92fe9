"""Answers of the OpenAI surfaces, as their clients' own types have them. A field that is never anything but null is theirs."""

from typing import Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length"]


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "sojourn"
    max_model_len: int  # ours: the context in tokens


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """A prompt counts once, however many choices share it; the cached tokens are those that its first choice found."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None  # ours


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(BaseModel):
    """Lists of the same length; `text_offset` is in characters of the choice's text. The first token of all has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    finish_reason: FinishReason
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | None = None  # ours


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
