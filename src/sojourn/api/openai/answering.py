"""From a run to an answer over HTTP: one object at the end, or a stream of chunks. The same for every OpenAI surface.

    whole    steps ─▶ choices ─▶ object with usage
    stream   opening of each choice, its deltas, its ending; usage if asked for; [DONE]. An error ends it

What a choice looks like is the writer's; what runs is the run's.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from fastapi import Request, Response
from pydantic import BaseModel

from sojourn.api.errors import fault_of
from sojourn.api.front import Front
from sojourn.api.generation import Piece
from sojourn.api.off_loop import SCORED, off_loop
from sojourn.api.openai import objects
from sojourn.api.openai.runs import Outcome, Run
from sojourn.api.openai.schemas import SharedBody
from sojourn.api.openai.shown import Echo, Shown, ShownChoice, ShownToken
from sojourn.api.requests import request_id_of
from sojourn.api.streaming import DONE, EventStream, event_of, json_of, while_connected
from sojourn.core.errors import SojournError

OBFUSCATED_SIZE = 64  # sizes of chunks are rounded up to a multiple of it
Fields = dict[str, object]


@dataclass(slots=True)
class WholeChoice:
    """All that was shown of a choice."""

    index: int
    finish_reason: objects.FinishReason
    parts: list[str] = field(default_factory=list)
    tokens: list[ShownToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, shown: Shown) -> None:
        self.parts.append(shown.text)
        self.tokens += shown.tokens
        self.token_ids += shown.token_ids


class Writer(Protocol):
    """The wording of one answer."""

    @property
    def chunk_object(self) -> str: ...

    def opening(self, index: int) -> Fields | None:
        """The choice of the first chunk, before there is any text."""
        ...

    def delta(self, index: int, shown: Shown) -> Fields | None:
        """The choice of a chunk; None when there is nothing to show."""
        ...

    def ending(self, index: int, shown: Shown, reason: objects.FinishReason) -> Fields: ...

    def whole(self, head: "Head", choices: Sequence[WholeChoice], usage: objects.Usage) -> BaseModel: ...


@dataclass(frozen=True, slots=True)
class Head:
    """What every object and every chunk of an answer begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def of(cls, request: Request, front: Front, prefix: str) -> "Head":
        card = front.text.card
        what = (front.settings.version, card.name, card.source, card.parameters, card.kv_dtype)
        fingerprint = hashlib.sha256(repr(what).encode()).hexdigest()[:10]
        return cls(f"{prefix}-{request_id_of(request)}", int(front.world.now()), card.name, f"fp_{fingerprint}")


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything about an answer but its request."""

    front: Front
    body: SharedBody
    session_id: str | None
    num_choices: int
    head: Head
    run: Run
    writer: Writer

    @property
    def headers(self) -> Mapping[str, str]:
        headers = {} if self.session_id is None else {"x-session-id": self.session_id}
        if ignored := self.body.ignored:
            headers["x-ignored-parameters"] = ", ".join(ignored)
        return headers


async def respond(request: Request, asked: Asked) -> Response:
    if not asked.body.stream:
        return await while_connected(request, _whole(asked))
    await while_connected(request, asked.run.enter())
    keep_alive_s = asked.front.settings.keep_alive_s
    return EventStream(_events(asked), asked.run.leave, keep_alive_s=keep_alive_s, headers=asked.headers)


async def _whole(asked: Asked) -> Response:
    await asked.run.enter()
    try:
        shown = _choices(asked)
        choices = [WholeChoice(index, "stop") for index in range(asked.num_choices)]
        outcomes: list[Outcome] = []
        async for index, step in asked.run.steps():
            if isinstance(step, Outcome):
                outcomes.append(step)
                choices[index].finish_reason = step.finish_reason
                choices[index].add(shown[index].rest(step.stop))
            else:
                choices[index].add(await off_loop(partial(_show, shown[index], step), _cost(step)))
        num_scored = sum(len(choice.tokens) for choice in choices)
        usage = usage_of(outcomes)
        answer = await off_loop(
            lambda: asked.writer.whole(asked.head, choices, usage).model_dump_json(), SCORED * num_scored
        )
        return Response(answer, headers=dict(asked.headers), media_type="application/json")
    finally:
        await asked.run.leave()


async def _events(asked: Asked) -> AsyncIterator[bytes]:
    shown, writer = _choices(asked), asked.writer
    outcomes: list[Outcome] = []
    for index in range(asked.num_choices):
        if (opening := writer.opening(index)) is not None:
            yield _chunk(asked, [opening])
    try:
        async for index, step in asked.run.steps():
            if isinstance(step, Outcome):
                outcomes.append(step)
                yield _chunk(asked, [writer.ending(index, shown[index].rest(step.stop), step.finish_reason)])
            elif chunk := await off_loop(partial(_delta, asked, index, shown[index], step), _cost(step)):
                yield chunk
        if asked.body.includes_usage:
            yield _chunk(asked, [], usage_of(outcomes))
    except SojournError as error:
        yield event_of(fault_of(error, asked.front.settings.retry_after_s).body())
    yield DONE


def _delta(asked: Asked, index: int, choice: ShownChoice, step: Echo | Piece) -> bytes:
    """Empty: there is nothing to show."""
    delta = asked.writer.delta(index, _show(choice, step))
    return b"" if delta is None else _chunk(asked, [delta])


def _cost(step: Echo | Piece) -> int:
    return SCORED * len(step.samples)


def _show(choice: ShownChoice, step: Echo | Piece) -> Shown:
    return choice.echo(step) if isinstance(step, Echo) else choice.piece(step)


def _choices(asked: Asked) -> list[ShownChoice]:
    tokenizer = asked.front.text.tokenizer
    return [ShownChoice(tokenizer) for _ in range(asked.num_choices)]


def usage_of(outcomes: Sequence[Outcome]) -> objects.Usage:
    prompt = sum(outcome.prompt_tokens for outcome in outcomes)
    completion = sum(outcome.completion_tokens for outcome in outcomes)
    cached = sum(outcome.cached_tokens for outcome in outcomes)
    return objects.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=objects.PromptTokensDetails(cached_tokens=cached),
    )


def _chunk(asked: Asked, choices: list[Fields], usage: objects.Usage | None = None) -> bytes:
    head = asked.head
    fields: Fields = {
        "id": head.id,
        "object": asked.writer.chunk_object,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.system_fingerprint,
        "choices": choices,
    }
    if asked.body.includes_usage:
        fields["usage"] = None if usage is None else usage.model_dump()
    if asked.body.is_obfuscated:
        size = -len(json_of(fields)) % OBFUSCATED_SIZE
        fields["obfuscation"] = (asked.front.world.new_id() + asked.front.world.new_id())[:size]
    return event_of(fields)
