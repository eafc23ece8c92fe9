"""One generation of this dialect from job to last word: alone, in a streaming session, or at a node of a tree.

    hold its id ─▶ session? ─▶ start ─▶ chunks ─▶ leave

Refusals are said in the dialect's words. Owns what it entered; knows no HTTP.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from sojourn.api import wire
from sojourn.api.account import Asker
from sojourn.api.generation import Generation
from sojourn.api.input_field import input_named
from sojourn.api.native.answers import Answer, Json
from sojourn.api.native.desk import NativeDesk
from sojourn.api.native.job import Job
from sojourn.api.native.live import LiveRequest
from sojourn.api.native.schemas import SessionParamsBody
from sojourn.api.native.trees import Place, TreeSession
from sojourn.api.off_loop import SCORED, off_loop
from sojourn.core.errors import ClientError, ConflictError, NotFoundError

logger = logging.getLogger("sojourn.front")
NOTHING_TO_RUN = "A session request must contain input tokens after restoring history."
BUSY = "Streaming session already has an active request."


class NativeRun:
    """`enter` once, then read `chunks` to the end, or refuse; `leave` always."""

    def __init__(self, desk: NativeDesk, job: Job, asker: Asker) -> None:
        self.job = job
        self._desk = desk
        self._front = desk.front
        self._asker = replace(asker, request_id=job.rid)
        self._namespace = asker.tenant
        self._stack = AsyncExitStack()
        self._generation: Generation | None = None
        self._sent: list[int] = []

    async def enter(self) -> None:
        """Started; raises what it is refused for, with nothing left behind."""
        try:
            await self._enter()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Whatever still runs is undone."""
        await self._stack.aclose()

    async def chunks(self) -> AsyncIterator[Json]:
        """The answer so far whenever there is more, and the whole one at the end, when all that was held is free again."""
        generation = self._generation
        assert generation is not None
        answer = self._answer(generation)
        async for _ in generation.pieces():
            await _tell_prompt(answer, generation)
            if not generation.has_ended:
                yield answer.so_far()
        await _tell_prompt(answer, generation)
        await self.leave()
        yield answer.so_far()

    async def result(self) -> Json:
        generation = self._generation
        assert generation is not None
        await generation.finish()
        answer = self._answer(generation)
        await _tell_prompt(answer, generation)
        return answer.so_far()

    def _answer(self, generation: Generation) -> Answer:
        return Answer(self.job, self._sent, generation, self._front.text.tokenizer)

    # -- starting

    async def _enter(self) -> None:
        await self._stack.enter_async_context(self._front.work(self._namespace))
        live = self._stack.enter_context(self._desk.live.hold(self._namespace, self.job.rid))
        session = self.job.session
        if session is None or session.id is None:
            await self._start(live, self._command(self.job.ids))
        elif (tree := self._desk.trees.find(session.id, self._namespace)) is not None:
            await self._start_in_tree(live, tree, session)
        else:
            await self._start_in_session(live, session.id, session)

    async def _start(self, live: LiveRequest, command: wire.Start) -> None:
        self._sent = command.token_ids
        text = self.job.text_stream(self._front.text)
        with input_named(self.job.input_field):
            generation = await self._stack.enter_async_context(self._front.generate(command, self._asker, text))
        self._generation = generation
        live.started(generation)

    def _command(self, ids: list[int], session_id: str | None = None) -> wire.Start:
        job = self.job
        return wire.Start(
            session_id=session_id,
            namespace=self._namespace,
            token_ids=ids,
            sampling=job.sampling,
            max_new_tokens=job.max_new_tokens,
            stops=job.stops,
            stop_ids=job.stop_ids,
            ignore_eos=job.ignore_eos,
            skip_special=job.skip_special,
            bos_id=self._front.text.tokenizer.config.bos_id,
            cache_salt=job.cache_salt,
            logprobs_from=None if job.logprobs is None else job.logprobs.first_known(len(ids)),
        )

    async def _start_in_tree(self, live: LiveRequest, tree: TreeSession, asked: SessionParamsBody) -> None:
        place = Place(asked.rid, asked.offset or 0, bool(asked.replace), bool(asked.drop_previous_output))
        bos_id = self._front.text.tokenizer.config.bos_id
        node = tree.plan(self.job.rid, self.job.ids, place, live.abort, bos_id)
        ids = node.prompt()
        if not ids:
            raise ClientError(NOTHING_TO_RUN, param=self.job.input_field)
        self._check_total(len(ids))
        command = self._command(ids)
        tree.begin(node)
        try:
            await self._start(live, command)
        except BaseException:
            tree.refuse(node)
            raise
        tree.accept(node)
        assert self._generation is not None
        node.output = self._generation.output_ids  # grows as it is said
        self._stack.callback(tree.finish, node)

    async def _start_in_session(self, live: LiveRequest, session_id: str, asked: SessionParamsBody) -> None:
        for name, is_set in (
            ("replace", asked.replace),
            ("drop_previous_output", asked.drop_previous_output),
            ("offset", asked.offset),
        ):
            if is_set:
                raise ClientError(f"Streaming sessions do not support {name}.", param=f"session_params.{name}")
        if self.job.logprobs is not None and self.job.logprobs.start is not None:
            logger.warning("request %s: logprob_start_len is -1 in a streaming session", self.job.rid)
            self.job = replace(self.job, logprobs=replace(self.job.logprobs, start=None))
        try:
            await self._stack.enter_async_context(self._front.lanes.hold((session_id, self._namespace), wait=False))
            await self._start(live, self._command(self.job.ids, session_id))
        except ConflictError as error:
            raise await self._why_busy(session_id) from error
        except NotFoundError as error:
            raise _unknown(session_id) from error
        except ClientError as error:
            if error.code == "context_length_exceeded":
                self._check_total(await self._total(session_id))
            if error.param == self.job.input_field and not self.job.ids:
                raise ClientError(NOTHING_TO_RUN, param=self.job.input_field) from error
            raise

    async def _why_busy(self, session_id: str) -> ClientError:
        try:
            info = await self._front.link.ask(wire.ShowSession(session_id, self._namespace), wire.SessionInfo)
        except NotFoundError:
            return _unknown(session_id)
        if info.state == "closing":
            return ClientError(f"Invalid request: close was requested for session {session_id}", param="session_params")
        return ClientError(BUSY, param="session_params", code="session_busy")

    async def _total(self, session_id: str) -> int:
        """Tokens of the session and the job together."""
        info = await self._front.link.ask(wire.ShowSession(session_id, self._namespace), wire.SessionInfo)
        bos_id = self._front.text.tokenizer.config.bos_id
        is_dropped = info.num_tokens > 0 and self.job.ids[:1] == [bos_id]
        return info.num_tokens + len(self.job.ids) - is_dropped

    def _check_total(self, length: int) -> None:
        longest = self._front.text.card.context - 1
        if length > longest:
            raise ClientError(
                f"Input length ({length} tokens) exceeds the maximum allowed length ({longest} tokens). "
                "Use a shorter input or enable --allow-auto-truncate.",
                param=self.job.input_field,
                code="context_length_exceeded",
            )


async def _tell_prompt(answer: Answer, generation: Generation) -> None:
    """Once: from the first piece on all of it is known."""
    if answer.scores is not None and not answer.scores.has_prompt:
        known = generation.known
        await off_loop(partial(answer.scores.tell_prompt, known), SCORED * len(known))


def _unknown(session_id: str) -> ClientError:
    return ClientError(f"Invalid request: session id {session_id} does not exist", param="session_params")
