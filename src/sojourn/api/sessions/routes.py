"""The sessions API: open, turn, append, interrupt, rewind, fork, close. HTTP on one side, commands and turns on the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from sojourn.api import wire
from sojourn.api.auth import Role, principal_of
from sojourn.api.errors import fault_of
from sojourn.api.front import Front, TextSide
from sojourn.api.requests import asker_of, front_of
from sojourn.api.schemas import SESSION_ID_PATTERN
from sojourn.api.sessions import files, schemas
from sojourn.api.sessions.dialogue import note_of, text_of
from sojourn.api.sessions.kv_in import take_kv
from sojourn.api.sessions.kv_out import outgoing_of
from sojourn.api.sessions.turns import SessionDesk, TurnRun
from sojourn.api.sessions.upload import Uploads
from sojourn.api.streaming import DONE, STREAMED, ClientGoneError, EventStream, FileStream, event_of, while_connected
from sojourn.core.errors import SojournError

IMPORT_PATH = "/v1/sessions/import"
FILE_TYPE = "application/octet-stream"
BINARY = {"content": {FILE_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
FILE_ANSWER: dict[int | str, dict[str, object]] = {200: {"description": "the file", **BINARY}}
FILE_BODY = {"requestBody": {"required": True, **BINARY}}

SessionId = Annotated[str, Path(max_length=128)]
WithKv = Annotated[bool, Query(description="with its keys and values, as far as there are some")]
Tenant = Annotated[str | None, Query(max_length=64, description="whose session; only administrators name others")]


def session_object(info: wire.SessionInfo, text: TextSide) -> schemas.SessionObject:
    return schemas.SessionObject(
        id=info.session_id,
        tenant=info.namespace,
        state=info.state,
        turns=info.num_turns,
        tokens=info.num_tokens,
        timeout=info.idle_timeout_s,
        priority=info.priority,
        pages={held.pool: schemas.PagesOfPool(own=held.own, leased=held.leased) for held in info.pages},
        killed=None if info.killed is None else killed_object(info.killed, text),
    )


def killed_object(killed: wire.Killed, text: TextSide) -> schemas.KilledObject:
    said = text_of(killed.token_ids, note_of(killed.note, (), text.tokenizer), text.tokenizer)
    return schemas.KilledObject(new_tokens=killed.num_prompt, token_ids=killed.token_ids, text=said)


def sessions_router(desk: SessionDesk) -> APIRouter:
    router = APIRouter(prefix="/v1/sessions", tags=["sessions"])
    _add_life(router, desk)
    _add_branches(router, desk)
    _add_files(router, desk)
    _add_turns(router, desk)
    return router


def _add_life(router: APIRouter, desk: SessionDesk) -> None:
    @router.post("", operation_id="open_session")
    async def open_session(
        request: Request, body: Annotated[schemas.OpenBody | None, Body()] = None
    ) -> schemas.SessionObject:
        """A new, empty session."""
        front, principal = front_of(request), principal_of(request, Role.USER)
        front.check_open()
        asked = body or schemas.OpenBody()
        name = asked.session_id or front.world.new_id()
        elsewhere = front.elsewhere(principal.tenant)
        command = wire.OpenSession(name, principal.tenant, asked.timeout, asked.priority, elsewhere)
        info = await front.link.ask(command, wire.SessionInfo)
        front.metrics.session_opened()
        desk.forget(name, info.namespace)
        return session_object(info, front.text)

    @router.get("", operation_id="list_sessions")
    async def list_sessions(request: Request) -> schemas.SessionListObject:
        """The open sessions of this key's tenant; an administrator sees all."""
        front, principal = front_of(request), principal_of(request, Role.USER)
        listed = await front.link.ask(wire.ListSessions(principal.reach), wire.SessionList)
        return schemas.SessionListObject(data=[session_object(info, front.text) for info in listed.sessions])

    @router.get("/{session_id}", operation_id="get_session")
    async def get_session(request: Request, session_id: SessionId, tenant: Tenant = None) -> schemas.SessionObject:
        """State, turns, tokens, and the pages it holds."""
        front, principal = front_of(request), principal_of(request, Role.USER)
        info = await front.link.ask(wire.ShowSession(session_id, principal.namespace(tenant)), wire.SessionInfo)
        return session_object(info, front.text)

    @router.delete("/{session_id}", operation_id="close_session")
    async def close_session(request: Request, session_id: SessionId, tenant: Tenant = None) -> schemas.DeletedObject:
        """Close it now, or when its running turn ends (`deferred`)."""
        front, principal = front_of(request), principal_of(request, Role.USER)
        closed = await front.link.ask(wire.CloseSession(session_id, principal.namespace(tenant)), wire.Closed)
        desk.forget(session_id, principal.namespace(tenant))
        if not closed.deferred:
            front.metrics.session_closed("client")
        return schemas.DeletedObject(
            id=session_id, deleted=not closed.deferred, deferred=closed.deferred, freed_pages=closed.freed_pages
        )


def _add_branches(router: APIRouter, desk: SessionDesk) -> None:
    @router.post("/{session_id}/interrupt", operation_id="interrupt_turn")
    async def interrupt(
        request: Request,
        session_id: SessionId,
        body: Annotated[schemas.InterruptBody | None, Body()] = None,
        tenant: Tenant = None,
    ) -> schemas.InterruptedObject:
        """Stop the running turn now, keeping the first `keep` tokens of its answer."""
        front, principal = front_of(request), principal_of(request, Role.USER)
        keep = None if body is None else body.keep
        stopped = await front.link.ask(wire.Interrupt(session_id, principal.namespace(tenant), keep), wire.Stopped)
        return schemas.InterruptedObject(id=session_id, interrupted=stopped.stopped)

    @router.post("/{session_id}/rewind", operation_id="rewind_session")
    async def rewind(
        request: Request, session_id: SessionId, body: schemas.BranchBody, tenant: Tenant = None
    ) -> schemas.SessionObject:
        """Go back to the end of a turn, or to a length; the rest is forgotten."""
        front, principal = front_of(request), principal_of(request, Role.USER)
        command = wire.Rewind(session_id, principal.namespace(tenant), body.length, body.turns)
        info = await front.link.ask(command, wire.SessionInfo)
        desk.forget(session_id, info.namespace)
        return session_object(info, front.text)

    @router.post("/{session_id}/fork", operation_id="fork_session")
    async def fork(
        request: Request,
        session_id: SessionId,
        body: Annotated[schemas.ForkBody | None, Body()] = None,
        tenant: Tenant = None,
    ) -> schemas.SessionObject:
        """A new session that begins with the first turns or tokens of this one; a running turn is not part of it."""
        front, principal = front_of(request), principal_of(request, Role.USER)
        front.check_open()
        asked = body or schemas.ForkBody()
        name = asked.session_id or front.world.new_id()
        namespace = principal.namespace(tenant)
        elsewhere = front.elsewhere(namespace)
        command = wire.Fork(session_id, namespace, name, asked.length, asked.turns, elsewhere)
        info = await front.link.ask(command, wire.SessionInfo)
        front.metrics.session_opened()
        desk.forget(name, info.namespace)
        return session_object(info, front.text)


def _add_files(router: APIRouter, desk: SessionDesk) -> None:
    uploads = Uploads(desk.front.settings)

    @router.get("/{session_id}/export", operation_id="export_session", responses=FILE_ANSWER, response_class=Response)
    async def export_session(
        request: Request, session_id: SessionId, tenant: Tenant = None, kv: WithKv = False
    ) -> Response:
        """The session as a file, as it stands: a running turn is no part of it. `import` opens it again."""
        front, principal = front_of(request), principal_of(request, Role.USER)
        namespace = principal.namespace(tenant)
        headers = {"content-disposition": 'attachment; filename="session.sojourn"'}
        if kv:
            return await _export_with_kv(front, session_id, namespace, headers)
        copy = await front.link.ask(wire.CopySession(session_id, namespace), wire.SessionCopy)
        data = await asyncio.to_thread(files.to_file, copy, session_id, front.text.card)
        return Response(data, media_type=FILE_TYPE, headers=headers)

    @router.post("/import", operation_id="import_session", openapi_extra=FILE_BODY)
    async def import_session(
        request: Request, session_id: Annotated[str | None, Query(pattern=SESSION_ID_PATTERN)] = None
    ) -> schemas.SessionObject:
        """A new session from the file of an exported one; `session_id` is its name here, made up if there is none.

        The file must be the same model's. What was cut, changed or made by something else is 400, and nothing is opened. KV
        in it is taken where the operator allows it; `kv` in the answer says.
        """
        front, principal = front_of(request), principal_of(request, Role.USER)
        front.check_open()
        with uploads.begin() as upload:
            try:
                async for chunk in request.stream():
                    await upload.take(chunk)
            except ClientDisconnect as error:
                raise ClientGoneError from error
            arrived = await asyncio.to_thread(upload.read, front.text.card)
            name = session_id or front.world.new_id()
            tenant = principal.tenant
            command = wire.TakeIn(name, tenant, arrived.copy, front.elsewhere(tenant))
            info = await front.link.ask(command, wire.SessionInfo)
            front.metrics.session_opened()
            desk.forget(name, info.namespace)
            kv = await take_kv(front, upload, arrived, name, principal.tenant)
        return session_object(info, front.text).model_copy(update={"kv": kv})


def _add_turns(router: APIRouter, desk: SessionDesk) -> None:
    @router.post("/{session_id}/turns", operation_id="run_turn", response_model=schemas.TurnObject, responses=STREAMED)
    async def turns(request: Request, session_id: SessionId, body: schemas.TurnBody) -> Response:
        """Run a turn over the history and what is new in the body. `stream: true` answers with server-sent events."""
        asker = asker_of(request, principal_of(request, Role.USER).tenant)
        run = TurnRun(desk, session_id, asker, body)
        if not body.stream:
            return await while_connected(request, _answer(run))
        await while_connected(request, run.enter())
        settings = desk.front.settings
        headers = {"x-request-id": run.request_id}
        return EventStream(_events(run), run.leave, keep_alive_s=settings.keep_alive_s, headers=headers)

    @router.post("/{session_id}/append", operation_id="append", response_model=schemas.TurnObject)
    async def append(request: Request, session_id: SessionId, body: schemas.AppendBody) -> Response:
        """Compute what is new ahead of a turn. A message stays open: the next append or turn may go on with it."""
        asker = asker_of(request, principal_of(request, Role.USER).tenant)
        run = TurnRun(desk, session_id, asker, body)
        return await while_connected(request, _answer(run))


async def _export_with_kv(front: Front, session_id: str, namespace: str, headers: dict[str, str]) -> Response:
    """Read from the disk while it is sent. A drain waits for it."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(front.work(namespace))
        outgoing = await outgoing_of(front, session_id, namespace)
        headers = {**headers, "content-length": str(outgoing.length)}
        return FileStream(outgoing.chunks(), stack.pop_all().aclose, media_type=FILE_TYPE, headers=headers)


async def _answer(run: TurnRun) -> Response:
    await run.enter()
    try:
        if run.replayed is not None:
            return _json(run.replayed)
        async for _ in run.pieces():
            pass
        return _json(run.result())
    finally:
        await run.leave()


def _json(body: schemas.TurnObject) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")


async def _events(run: TurnRun) -> AsyncIterator[bytes]:
    """turn.started, delta ..., turn.ended (the whole turn), [DONE]; an error in between ends the stream."""
    try:
        if run.replayed is None:
            yield event_of({"type": "turn.started", "turn": run.turn, "prompt_tokens": run.prompt_tokens})
            async for piece in run.pieces():
                delta: dict[str, object] = {"type": "delta", "text": piece.text, "token_ids": piece.token_ids}
                if piece.samples:
                    delta["logprobs"] = [[sample.token, sample.logprob, sample.top] for sample in piece.samples]
                yield event_of(delta)
        result = run.replayed or run.result()
        yield event_of({"type": "turn.ended", **result.model_dump()})
    except SojournError as error:
        yield event_of({"type": "error", **fault_of(error).body()})
    yield DONE
