"""POST /v1/chat/completions: messages to a run, its steps to chat completions."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from sojourn.api.account import Asker
from sojourn.api.auth import Role, principal_of
from sojourn.api.front import Front
from sojourn.api.off_loop import off_loop
from sojourn.api.openai import objects
from sojourn.api.openai.answering import Asked, Fields, Head, WholeChoice, respond
from sojourn.api.openai.asking import NamedRun, SessionHeader, check_model, inner_turn
from sojourn.api.openai.runs import Plan, Run, SessionTurn, StatelessRun
from sojourn.api.openai.schemas import ChatBody
from sojourn.api.openai.shown import Shown, ShownToken, Token
from sojourn.api.requests import asker_of
from sojourn.api.sessions.schemas import ChatMessage
from sojourn.api.sessions.turns import SessionDesk
from sojourn.api.streaming import STREAMED
from sojourn.core.errors import ClientError
from sojourn.models.chat_template import Message


def add_chat(router: APIRouter, desk: SessionDesk) -> None:
    @router.post(
        "/chat/completions",
        operation_id="create_chat_completion",
        response_model=objects.ChatCompletion,
        responses=STREAMED,
    )
    async def create(request: Request, body: ChatBody, x_session_id: SessionHeader = None) -> Response:
        """Answer the messages. With a session only the new ones are sent, and its history is never rendered again."""
        front, asker = desk.front, asker_of(request, principal_of(request, Role.USER).tenant)
        session_id = body.session(x_session_id)
        body.check()
        body.check_known(is_strict=front.settings.is_strict)
        check_model(front, body.model)
        run = await _run(desk, asker, session_id, body)
        named = NamedRun(run, "messages")
        writer = _Writer(wants_logprobs=bool(body.logprobs), wants_ids=body.return_token_ids)
        head = Head.of(request, front, "chatcmpl")
        return await respond(request, Asked(front, body, session_id, body.num_choices, head, named, writer))


async def _run(desk: SessionDesk, asker: Asker, session_id: str | None, body: ChatBody) -> Run:
    front = desk.front
    said = [ChatMessage.model_construct(role=one.spoken_role, content=one.content) for one in body.messages]
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    turn = inner_turn(body, max_tokens=max_tokens, logprobs=body.num_logprobs, messages=said)
    if session_id is not None:
        return SessionTurn(desk, session_id, asker, turn)
    if not said:
        raise ClientError("messages is empty: give at least one", param="messages")
    options = turn.options(front.text.card.vocab_size)
    prompts = await off_loop(lambda: [_opening(front, said)], turn.size)
    return StatelessRun(front, asker, Plan(prompts, body.num_choices, options, turn.cache_salt))


def _opening(front: Front, said: Sequence[ChatMessage]) -> list[int]:
    messages: list[Message] = [{"role": one.role, "content": one.content} for one in said]
    return front.text.glue.opening(messages)


@dataclass(frozen=True, slots=True)
class _Writer:
    wants_logprobs: bool
    wants_ids: bool
    chunk_object: str = "chat.completion.chunk"

    def opening(self, index: int) -> Fields | None:
        return self._choice(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def delta(self, index: int, shown: Shown) -> Fields | None:
        if not shown.text and not shown.tokens and not (self.wants_ids and shown.token_ids):
            return None
        return self._choice(index, {"content": shown.text}, shown)

    def ending(self, index: int, shown: Shown, reason: objects.FinishReason) -> Fields:
        return {**self._choice(index, {}, shown), "finish_reason": reason}

    def whole(self, head: Head, choices: Sequence[WholeChoice], usage: objects.Usage) -> objects.ChatCompletion:
        return objects.ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=[self._whole_choice(choice) for choice in choices],
            usage=usage,
        )

    def _whole_choice(self, choice: WholeChoice) -> objects.ChatChoice:
        return objects.ChatChoice(
            index=choice.index,
            message=objects.AssistantMessage(content=choice.text),
            finish_reason=choice.finish_reason,
            logprobs=_logprobs(choice.tokens) if self.wants_logprobs else None,
            token_ids=choice.token_ids if self.wants_ids else None,
        )

    def _choice(self, index: int, delta: Fields, shown: Shown | None) -> Fields:
        fields: Fields = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
        if shown is not None and self.wants_logprobs:
            fields["logprobs"] = _logprobs(shown.tokens).model_dump()
        if shown is not None and self.wants_ids:
            fields["token_ids"] = shown.token_ids
        return fields


def _logprobs(tokens: Sequence[ShownToken]) -> objects.ChatLogprobs:
    return objects.ChatLogprobs(content=[_token(token) for token in tokens])


def _token(shown: ShownToken) -> objects.TokenLogprob:
    token = shown.token
    top = [_top(one) for one in shown.top]
    return objects.TokenLogprob(token=token.text, logprob=token.logprob, bytes=list(token.raw), top_logprobs=top)


def _top(token: Token) -> objects.TopLogprob:
    return objects.TopLogprob(token=token.text, logprob=token.logprob, bytes=list(token.raw))
