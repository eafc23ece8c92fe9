"""A turn of a session from body to answer: its place in line, its ids, its run, its record.

    enter the lane ─▶ dialogue ─▶ replay? ─▶ ids ─▶ start ─▶ pieces ─▶ record ─▶ leave

Owns the dialogues it remembers; the engine's transcript is the truth, and what is in doubt is read again.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from sojourn.api import wire
from sojourn.api.account import Asker
from sojourn.api.front import Front
from sojourn.api.generation import Generation, Piece
from sojourn.api.input_field import input_named
from sojourn.api.off_loop import off_loop
from sojourn.api.options import TurnOptions
from sojourn.api.schemas import Usage
from sojourn.api.sessions.dialogue import Dialogue, Note, dialogue_of, note_of, text_and_stop
from sojourn.api.sessions.schemas import (
    AppendBody,
    CacheReport,
    InnerTurnBody,
    InputBody,
    TokenLogprob,
    TurnBody,
    TurnObject,
)
from sojourn.core.errors import ClientError, ConflictError
from sojourn.core.step import Sample, SamplingParams
from sojourn.models.chat_template import Message
from sojourn.sessions.door import checked_token_ids

DIALOGUES_KEPT = 512


class SessionDesk:
    """Turns of all sessions of one front."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self._dialogues: OrderedDict[tuple[str, str], Dialogue] = OrderedDict()  # by session and tenant

    def forget(self, session_id: str, namespace: str) -> None:
        """What is remembered of this session is in doubt; the next turn reads the transcript."""
        self._dialogues.pop((session_id, namespace), None)

    def session_ended(self, ended: wire.SessionEnded) -> None:
        self.forget(ended.session_id, ended.namespace)
        self.front.metrics.session_closed(ended.why)

    def forget_all(self) -> None:
        self._dialogues.clear()

    async def dialogue(self, session_id: str, namespace: str) -> Dialogue:
        known = self._dialogues.get((session_id, namespace))
        if known is not None:
            self._dialogues.move_to_end((session_id, namespace))
            return known
        return await self._read(session_id, namespace)

    async def _read(self, session_id: str, namespace: str) -> Dialogue:
        text = self.front.text
        transcript = await self.front.link.ask(wire.ReadTranscript(session_id, namespace), wire.Transcript)
        dialogue = await asyncio.to_thread(dialogue_of, transcript, text.glue, text.tokenizer, text.eos_ids)
        self._dialogues[session_id, namespace] = dialogue
        if len(self._dialogues) > DIALOGUES_KEPT:
            self._dialogues.popitem(last=False)
        return dialogue

    async def replay(self, run: "TurnRun", number: int) -> TurnObject:
        """The answer of a turn that stands already, told again."""
        text = self.front.text
        transcript = await self.front.link.ask(wire.ReadTranscript(run.session_id, run.namespace), wire.Transcript)
        turn = transcript.turns[number]
        output = transcript.token_ids[turn.output_start : turn.end]
        note = note_of(turn.note, transcript.token_ids[turn.start : turn.output_start], text.tokenizer)
        said, stop = text_and_stop(output, note, text.tokenizer)
        return TurnObject(
            id=run.request_id,
            session_id=run.session_id,
            turn=number,
            text=said,
            token_ids=output,
            finish_reason=turn.reason,
            stop=stop if turn.reason == "stop" else None,
            kept_tokens=len(output),
            usage=Usage(
                prompt_tokens=turn.output_start,
                completion_tokens=len(output),
                total_tokens=turn.end,
                cached_tokens=turn.output_start,
            ),
            cache=CacheReport(cached_tokens=turn.output_start, new_tokens=0, source="replay", miss_reason=None),
            logprobs=None,
            replayed=True,
        )


class TurnRun:
    """One turn. `enter` once, then either `replayed` is set or `pieces` is iterated to its end; `leave` always."""

    def __init__(self, desk: SessionDesk, session_id: str, asker: Asker, body: TurnBody | AppendBody) -> None:
        self.session_id = session_id
        self.namespace = asker.tenant
        self.request_id = asker.request_id
        self._asker = asker
        self.replayed: TurnObject | None = None
        self._desk = desk
        self._front = desk.front
        self.body = body
        self._stack = AsyncExitStack()
        self._generation: Generation | None = None
        self._dialogue: Dialogue | None = None
        self._note: Note | None = None
        self._ids: list[int] = []
        self._is_recorded = False

    async def enter(self) -> None:
        """Started, or known to be a repetition; raises what it is refused for, with nothing left behind."""
        try:
            await self._enter()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Whatever still runs is undone, and the next in line may start."""
        await self._stack.aclose()

    async def _enter(self) -> None:
        body, front = self.body, self._front
        options = _options(body, front.text.card.vocab_size)
        await self._stack.enter_async_context(front.work(self.namespace))
        await self._stack.enter_async_context(front.lanes.hold((self.session_id, self.namespace), wait=body.wait))
        front.check_open()  # a drain may have begun while it waited in line
        fingerprint = _fingerprint(body)
        for attempt in range(2):
            dialogue = self._dialogue = await self._desk.dialogue(self.session_id, self.namespace)
            if body.turn is not None and await self._is_repetition(dialogue, body.turn, fingerprint):
                return
            note, ids = await off_loop(partial(self._compose, dialogue, options, fingerprint), body.size)
            command = _start(self, ids, options, note, front.world.seed(), dialogue.num_tokens)
            try:
                with input_named(body.input_field):
                    self._generation = await self._stack.enter_async_context(front.generate(command, self._asker))
            except ConflictError as error:
                self._desk.forget(self.session_id, self.namespace)
                if attempt == 0 and error.code == "history_changed":
                    continue
                raise
            except ClientError:
                raise
            except BaseException:
                self._desk.forget(self.session_id, self.namespace)
                raise
            self._note, self._ids = note, ids
            self._stack.callback(self._forget_unless_recorded)
            return

    def _forget_unless_recorded(self) -> None:
        """It may also have ended and not been recorded: its client left before it was told the end."""
        if not self._is_recorded:
            self._desk.forget(self.session_id, self.namespace)

    async def _is_repetition(self, dialogue: Dialogue, number: int, fingerprint: bytes) -> bool:
        if number == dialogue.num_turns:
            return False
        if number > dialogue.num_turns:
            raise ConflictError(
                f"turn is {number}, but the session has {dialogue.num_turns} turns: the next is {dialogue.num_turns}",
                param="turn",
                code="turn_out_of_order",
            )
        if dialogue.notes[number].fingerprint != fingerprint:
            raise ConflictError(
                f"turn {number} was another one: the next is {dialogue.num_turns}", param="turn", code="turn_conflict"
            )
        self.replayed = await self._desk.replay(self, number)
        return True

    def _compose(self, dialogue: Dialogue, options: TurnOptions, fingerprint: bytes) -> tuple[Note, list[int]]:
        """What the turn says, as a note for the transcript and as ids for the engine."""
        body, text = self.body, self._front.text
        leaves_open = isinstance(body, AppendBody)
        new = _messages(body)
        continues_open = body.text is not None and bool(dialogue.open)
        if body.token_ids is not None:
            ids = checked_token_ids("token_ids", body.token_ids, text.card.vocab_size).tolist()
            new = [{"role": "user", "content": text.tokenizer.decode(ids)}] if ids else []
            continues_open = bool(dialogue.open)
        elif isinstance(body, InnerTurnBody) and body.raw_text is not None:
            ids, new = self._raw(dialogue, body.raw_text)
            continues_open = bool(dialogue.open)
        elif leaves_open:
            if not new:
                raise ClientError("an append needs text, messages or token_ids", param="text")
            ids = dialogue.append_ids(new, continues_open=continues_open)
        else:
            ids = dialogue.turn_ids(new, continues_open=continues_open)
        stops = list(options.stop_strings)
        said = [{name: str(value) for name, value in message.items()} for message in new]
        return Note(said, leaves_open, stops, True, fingerprint, continues_open), ids

    def _raw(self, dialogue: Dialogue, text: str) -> tuple[list[int], list[Message]]:
        """The ids of a text that goes on with the history as it is."""
        glue = self._front.text.glue
        if dialogue.num_tokens == 0:
            return glue.begin(text), [{"role": "user", "content": text}]
        return glue.go_on(text, continues=dialogue.sampled_eos is None), [{"role": "user", "content": text}]

    # -- what came of it

    @property
    def token_ids(self) -> list[int]:
        """What was appended."""
        return self._ids

    @property
    def known(self) -> list[Sample]:
        """The last of them with their log-probabilities, where they are asked for; all from the first piece on."""
        assert self._generation is not None
        return self._generation.known

    @property
    def turn(self) -> int:
        assert self._generation is not None
        return self._generation.started.turn or 0

    @property
    def prompt_tokens(self) -> int:
        assert self._generation is not None
        return self._generation.started.prompt_tokens

    async def pieces(self) -> AsyncIterator[Piece]:
        assert self._generation is not None
        async for piece in self._generation.pieces():
            yield piece
        self._record()

    def _record(self) -> None:
        """The dialogue goes on from here, unless the turn did not stand as it was said."""
        generation, dialogue, note = self._generation, self._dialogue, self._note
        assert generation is not None
        assert dialogue is not None
        assert note is not None
        self._is_recorded = True
        end = generation.end
        if end.reason == "abort":
            return
        output = generation.output_ids
        if end.kept != len(output):
            self._desk.forget(self.session_id, self.namespace)
            return
        eos = output[-1] if output and output[-1] in self._front.text.eos_ids else None
        dialogue.record(note, end.usage.prompt_tokens + end.kept, generation.text, eos)

    def result(self) -> TurnObject:
        """After the last piece."""
        generation = self._generation
        assert generation is not None
        end, usage = generation.end, generation.end.usage
        return TurnObject(
            id=self.request_id,
            session_id=self.session_id,
            turn=self.turn,
            text=generation.text,
            token_ids=generation.output_ids,
            finish_reason=end.reason,
            stop=end.stop_match,
            kept_tokens=end.kept,
            usage=usage_of(end),
            cache=CacheReport(
                cached_tokens=usage.cached_tokens,
                new_tokens=usage.prompt_tokens - usage.cached_tokens,
                source=usage.cached_source,
                miss_reason=end.miss,
            ),
            logprobs=logprobs_of(generation.samples) if generation.samples else None,
            replayed=False,
        )


def usage_of(end: wire.Ended) -> Usage:
    usage = end.usage
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def logprobs_of(samples: list[Sample]) -> list[TokenLogprob]:
    return [
        TokenLogprob(token_id=sample.token, logprob=sample.logprob or 0.0, top=list(sample.top)) for sample in samples
    ]


def _messages(body: InputBody) -> list[Message]:
    """The body's input as messages. Raises ClientError for more than one kind of it."""
    if sum(given is not None for given in (body.text, body.messages, body.token_ids)) > 1:
        raise ClientError("give one of text, messages and token_ids, not several", param="text")
    if body.text is not None:
        return [{"role": "user", "content": body.text}]
    return [{"role": message.role, "content": message.content} for message in body.messages or ()]


def _options(body: TurnBody | AppendBody, vocab_size: int) -> TurnOptions:
    return body.options(vocab_size) if isinstance(body, TurnBody) else TurnOptions()


def _start(
    run: TurnRun, ids: list[int], options: TurnOptions, note: Note, seed: int, expected_tokens: int
) -> wire.Start:
    inner = run.body if isinstance(run.body, InnerTurnBody) else None
    return wire.Start(
        session_id=run.session_id,
        namespace=run.namespace,
        token_ids=ids,
        sampling=SamplingParams() if note.leaves_open else options.sampling(seed),
        max_new_tokens=0 if note.leaves_open else options.max_tokens,
        stops=note.stops,
        ignore_eos=options.ignore_eos,
        expected_tokens=expected_tokens,
        note=msgspec.msgpack.encode(note),
        cache_salt="" if inner is None else inner.cache_salt,
        logprobs_from=0 if inner is not None and inner.scores_input else None,
    )


def _fingerprint(body: InputBody) -> bytes:
    """Of what is asked, not of how it is delivered."""
    asked = body.model_dump(exclude={"turn", "wait", "stream"})
    return hashlib.sha256(type(body).__name__.encode() + msgspec.json.encode(asked)).digest()[:16]
