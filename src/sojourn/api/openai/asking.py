"""From a body to what runs: the model it names, its options, its prompts as ids. Shared by the surfaces; knows no answer."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Header

from sojourn.api.front import Front
from sojourn.api.input_field import input_named
from sojourn.api.openai.runs import Run
from sojourn.api.openai.schemas import Prompt, SharedBody
from sojourn.api.schemas import SESSION_ID_PATTERN
from sojourn.api.sessions.schemas import ChatMessage, InnerTurnBody
from sojourn.core.errors import ClientError, NotFoundError

SessionHeader = Annotated[
    str | None,
    Header(alias="X-Session-ID", pattern=SESSION_ID_PATTERN, description="as session_id of the body"),
]


def check_model(front: Front, name: str) -> None:
    """Raise NotFoundError unless `name` is the model that is served."""
    served = front.text.card.name
    if name != served:
        raise NotFoundError(f"no model {name} is served here, but {served}", param="model", code="model_not_found")


def inner_turn(
    body: SharedBody,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    messages: Sequence[ChatMessage] = (),
    prompt: Prompt | None = None,
    scores_input: bool = False,
) -> InnerTurnBody:
    """The body as a turn. Its parts were checked as this body's; the bounds of its sampling are `TurnOptions`'."""
    fields: dict[str, object] = {
        **body.sampling(),
        "max_tokens": max_tokens,
        "logprobs": logprobs,
        "messages": list(messages) or None,
        "raw_text": prompt if isinstance(prompt, str) else None,
        "token_ids": prompt if isinstance(prompt, list) else None,
        "turn": body.turn,
        "wait": body.wait,
        "cache_salt": body.cache_salt or "",
        "scores_input": scores_input,
    }
    return InnerTurnBody.model_construct(set(fields), **fields)


def check_ids(prompts: Sequence[Prompt], vocab_size: int) -> None:
    """Raise ClientError naming the first id that is no token of this model."""
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str) or not prompt or max(prompt) < vocab_size:
            continue
        at = next(index for index, token in enumerate(prompt) if token >= vocab_size)
        place = f"[{number}][{at}]" if len(prompts) > 1 else f"[{at}]"
        raise ClientError(
            f"prompt{place} is {prompt[at]}: a token id is a whole number from 0 to {vocab_size - 1}", param="prompt"
        )


class NamedRun:
    """A run whose refusals name the field of this surface's body that its input came in."""

    def __init__(self, run: Run, input_field: str) -> None:
        self._run = run
        self._input_field = input_field
        self.steps = run.steps
        self.leave = run.leave

    async def enter(self) -> None:
        with input_named(self._input_field):
            await self._run.enter()
