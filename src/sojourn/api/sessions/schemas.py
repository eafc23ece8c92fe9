"""Bodies of the sessions API."""

from typing import Literal

from pydantic import BaseModel, Field

from sojourn.api.schemas import SESSION_ID_PATTERN, Length, Sampling, Strict, TokenId, Usage

Role = Literal["system", "user", "assistant", "tool", "developer"]


class ChatMessage(Strict):
    role: Role
    content: str = Field(max_length=4_000_000)


class OpenBody(Strict):
    session_id: str | None = Field(default=None, pattern=SESSION_ID_PATTERN, description="null: one is made up")
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=31_536_000,
        allow_inf_nan=False,
        description="seconds of idleness after which it is closed",
    )
    priority: int = Field(
        default=0,
        ge=-100,
        le=100,
        strict=True,
        description="the higher, the later its KV is given up when pages are short; its tokens stay in any case",
    )


class InputBody(Strict):
    """At most one of text, messages and token_ids."""

    text: str | None = Field(default=None, min_length=1, description="a user's message, or more of the one left open")
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, description="only the new ones")
    token_ids: list[TokenId] | None = Field(default=None, description="appended as they are")
    turn: int | None = Field(
        default=None, ge=0, description="number of this turn: repeated, it is answered and not run again"
    )
    wait: bool = Field(default=False, description="wait for the running turn instead of 409")

    @property
    def input_field(self) -> str:
        """The field that the input came in, for refusals."""
        return "messages" if self.messages is not None else "text" if self.token_ids is None else "token_ids"

    @property
    def size(self) -> int:
        """Characters and token ids of the input."""
        messages = sum(len(message.content) for message in self.messages or ())
        return len(self.text or "") + messages + len(self.token_ids or ())


class TurnBody(InputBody, Sampling):
    stream: bool = False


class InnerTurnBody(TurnBody):
    """A turn as another surface asks for it. No route takes it."""

    raw_text: str | None = Field(default=None, description="appended as it is, without a template")
    cache_salt: str = ""
    scores_input: bool = Field(default=False, description="log-probabilities of the new tokens, too")


class AppendBody(InputBody):
    pass


class InterruptBody(Strict):
    keep: Length | None = Field(
        default=None, description="tokens of the answer that stand; null: all so far; 0: the turn is undone"
    )


class BranchBody(Strict):
    """Exactly one of turns and length for a rewind, at most one for a fork."""

    turns: Length | None = Field(default=None, description="how many turns stay")
    length: Length | None = Field(default=None, description="how many tokens stay")


class ForkBody(BranchBody):
    session_id: str | None = Field(
        default=None, pattern=SESSION_ID_PATTERN, description="of the new session; null: made up"
    )


# -- answers


class PagesOfPool(BaseModel):
    own: int
    leased: int


class KilledObject(BaseModel):
    """A turn that the end of the engine cut off. It is no part of the history; asked again, it runs anew."""

    new_tokens: int
    token_ids: list[int] = Field(description="what it had said")
    text: str


class ImportedKvObject(BaseModel):
    """KV that came with a session's file. What was left out is computed with the next turn."""

    tokens: int = Field(description="that its next turn may find in the disk cache")
    left_out: str | None = Field(description="why there were not more; null: all was taken")


class SessionObject(BaseModel):
    id: str
    tenant: str = Field(description="whose it is; empty on a server without keys")
    object: Literal["session"] = "session"
    state: str
    turns: int
    tokens: int
    timeout: float | None
    priority: int
    pages: dict[str, PagesOfPool]
    killed: KilledObject | None = Field(default=None, description="until the next turn; with --durability token")
    kv: ImportedKvObject | None = Field(default=None, description="of an import whose file had KV")


class SessionListObject(BaseModel):
    object: Literal["list"] = "list"
    data: list[SessionObject]


class DeletedObject(BaseModel):
    id: str
    object: Literal["session.deleted"] = "session.deleted"
    deleted: bool
    deferred: bool
    freed_pages: int | None


class InterruptedObject(BaseModel):
    id: str
    object: Literal["session.interrupted"] = "session.interrupted"
    interrupted: bool


class CacheReport(BaseModel):
    """What was not computed again, where it came from ("session", "prefix", "disk", "none"), and why it was not more."""

    cached_tokens: int
    new_tokens: int
    source: str
    miss_reason: str | None


class TokenLogprob(BaseModel):
    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class TurnObject(BaseModel):
    id: str
    object: Literal["session.turn"] = "session.turn"
    session_id: str
    turn: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop: str | int | None
    kept_tokens: int
    usage: Usage
    cache: CacheReport
    logprobs: list[TokenLogprob] | None
    replayed: bool
