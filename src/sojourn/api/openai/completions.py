"""POST /v1/completions: prompts as text or as token ids to a run, its steps to text completions."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from sojourn.api.account import Asker
from sojourn.api.auth import Role, principal_of
from sojourn.api.front import TextSide
from sojourn.api.off_loop import off_loop
from sojourn.api.openai import objects
from sojourn.api.openai.answering import Asked, Fields, Head, WholeChoice, respond
from sojourn.api.openai.asking import NamedRun, SessionHeader, check_ids, check_model, inner_turn
from sojourn.api.openai.runs import Plan, Run, SessionTurn, StatelessRun
from sojourn.api.openai.schemas import COMPLETION_TOKENS_DEFAULT, CompletionBody, Prompt
from sojourn.api.openai.shown import Echo, Shown, ShownToken
from sojourn.api.requests import asker_of
from sojourn.api.sessions.turns import SessionDesk
from sojourn.api.streaming import STREAMED
from sojourn.core.errors import ClientError


def add_completions(router: APIRouter, desk: SessionDesk) -> None:
    @router.post(
        "/completions", operation_id="create_completion", response_model=objects.Completion, responses=STREAMED
    )
    async def create(request: Request, body: CompletionBody, x_session_id: SessionHeader = None) -> Response:
        """Continue the prompts, as they are. With a session the one prompt goes on with its history."""
        front, asker = desk.front, asker_of(request, principal_of(request, Role.USER).tenant)
        session_id = body.session(x_session_id)
        body.check_known(is_strict=front.settings.is_strict)
        check_model(front, body.model)
        if body.max_tokens == 0 and (not body.echo or session_id is not None):
            raise ClientError("max_tokens is 0: only with echo, and without a session", param="max_tokens")
        check_ids(body.prompt, front.text.card.vocab_size)
        run = NamedRun(await _run(desk, asker, session_id, body), "prompt")
        writer = _Writer(
            echoes=[_text(front.text, prompt) if body.echo and body.logprobs is None else "" for prompt in body.prompt],
            n=body.num_choices,
            num_logprobs=body.logprobs,
            wants_ids=body.return_token_ids,
        )
        num_choices = len(body.prompt) * body.num_choices
        head = Head.of(request, front, "cmpl")
        return await respond(request, Asked(front, body, session_id, num_choices, head, run, writer))


async def _run(desk: SessionDesk, asker: Asker, session_id: str | None, body: CompletionBody) -> Run:
    text = desk.front.text
    max_tokens = COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    first, is_scored = body.prompt[0], bool(body.echo) and body.logprobs is not None
    turn = inner_turn(body, max_tokens=max(1, max_tokens), logprobs=body.logprobs, prompt=first, scores_input=is_scored)
    if session_id is not None:
        if len(body.prompt) > 1:
            raise ClientError(f"a session has one history: {len(body.prompt)} prompts cannot follow it", param="prompt")
        return SessionTurn(desk, session_id, asker, turn, _echo(text, first, []) if is_scored else None)
    options = turn.options(text.card.vocab_size)
    prompts = await off_loop(lambda: [_ids(text, prompt) for prompt in body.prompt], sum(map(len, body.prompt)))
    echoes = [_echo(text, *one) for one in zip(body.prompt, prompts, strict=True)] if is_scored else None
    plan = Plan(prompts, body.num_choices, options, turn.cache_salt, echoes, only_echoes=max_tokens == 0)
    return StatelessRun(desk.front, asker, plan)


def _ids(text: TextSide, prompt: Prompt) -> list[int]:
    return text.glue.begin(prompt) if isinstance(prompt, str) else prompt


def _text(text: TextSide, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else text.tokenizer.decode(prompt)


def _echo(text: TextSide, prompt: Prompt, ids: list[int]) -> Echo:
    return Echo(_text(text, prompt), ids, [], is_written=isinstance(prompt, str))


@dataclass(frozen=True, slots=True)
class _Writer:
    """`echoes` of each prompt come before its `n` choices, unless they are steps of the run, with log-probabilities."""

    echoes: list[str]
    n: int
    num_logprobs: int | None
    wants_ids: bool
    chunk_object: str = "text_completion"

    def opening(self, index: int) -> Fields | None:
        echo = self._echo(index)
        return self._choice(index, Shown(echo)) if echo else None

    def delta(self, index: int, shown: Shown) -> Fields | None:
        if not shown.text and not shown.tokens and not (self.wants_ids and shown.token_ids):
            return None
        return self._choice(index, shown)

    def ending(self, index: int, shown: Shown, reason: objects.FinishReason) -> Fields:
        return {**self._choice(index, shown), "finish_reason": reason}

    def whole(self, head: Head, choices: Sequence[WholeChoice], usage: objects.Usage) -> objects.Completion:
        return objects.Completion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=[self._whole_choice(choice) for choice in choices],
            usage=usage,
        )

    def _echo(self, index: int) -> str:
        return self.echoes[index // self.n]

    def _whole_choice(self, choice: WholeChoice) -> objects.CompletionChoice:
        return objects.CompletionChoice(
            index=choice.index,
            text=self._echo(choice.index) + choice.text,
            finish_reason=choice.finish_reason,
            logprobs=self._logprobs(choice.tokens),
            token_ids=choice.token_ids if self.wants_ids else None,
        )

    def _choice(self, index: int, shown: Shown) -> Fields:
        logprobs = self._logprobs(shown.tokens)
        fields: Fields = {
            "index": index,
            "text": shown.text,
            "finish_reason": None,
            "logprobs": None if logprobs is None else logprobs.model_dump(),
        }
        if self.wants_ids:
            fields["token_ids"] = shown.token_ids
        return fields

    def _logprobs(self, tokens: Sequence[ShownToken]) -> objects.CompletionLogprobs | None:
        if self.num_logprobs is None:
            return None
        return objects.CompletionLogprobs(
            tokens=[shown.token.text for shown in tokens],
            token_logprobs=[shown.token.logprob if shown.is_scored else None for shown in tokens],
            top_logprobs=[_top(shown) for shown in tokens] if self.num_logprobs else None,
            text_offset=[shown.offset for shown in tokens],
        )


def _top(shown: ShownToken) -> dict[str, float] | None:
    """The likeliest ones, and the token itself whether it is among them or not."""
    if not shown.is_scored:
        return None
    top = {token.text: token.logprob for token in shown.top}
    return top | {shown.token.text: shown.token.logprob}
