"""The native dialect over HTTP: the endpoints its clients call, as they call them."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from sojourn.api import wire
from sojourn.api.auth import Role, principal_of
from sojourn.api.errors import fault_of
from sojourn.api.health import generate_one_token
from sojourn.api.native import answers, schemas
from sojourn.api.native.answers import Json
from sojourn.api.native.desk import NativeDesk
from sojourn.api.native.faults import NativeRoute, native_fault
from sojourn.api.native.job import jobs_of
from sojourn.api.native.run import NativeRun
from sojourn.api.requests import asker_of, request_id_of
from sojourn.api.streaming import DONE, EventStream, event_of, while_connected
from sojourn.core.errors import ClientError, ConflictError, NotFoundError, SojournError

ERRORS: dict[int | str, dict[str, object]] = {
    400: {"model": schemas.Refused | schemas.Invalid},
    503: {"model": schemas.Refused},
}
FLUSHED = "Cache flushed: cached and idle KV is dropped, sessions and their histories live.\n"
NOT_FLUSHED = "Nothing was flushed: requests are running or waiting.\n"


def native_router(desk: NativeDesk) -> APIRouter:
    router = APIRouter(tags=["native"], route_class=NativeRoute, responses=ERRORS)
    _add_sessions(router, desk)
    _add_generate(router, desk)
    _add_control(router, desk)
    _add_information(router, desk)
    return router


def _add_sessions(router: APIRouter, desk: NativeDesk) -> None:
    front = desk.front

    async def open_session(request: Request, body: schemas.OpenSessionBody) -> str:
        """A new session: append-only with `streaming`, else a tree of requests."""
        principal = principal_of(request, Role.USER)
        front.check_open()
        name = body.session_id or front.world.new_id()
        try:
            await desk.open(name, principal.tenant, body.timeout, streaming=bool(body.streaming))
        except ConflictError as error:
            raise ClientError(
                "Failed to open the session. Check if a session with the same id is still open.", param="session_id"
            ) from error
        front.metrics.session_opened()
        desk.forget(name, principal.tenant)
        return name

    async def close_session(request: Request, body: schemas.CloseSessionBody) -> schemas.ClosedSession:
        """Close it now, or when its running turn ends. An unknown one is closed already."""
        principal, name = principal_of(request, Role.USER), body.session_id
        closed = wire.Closed(deferred=False, freed_pages=0)
        try:
            if desk.trees.find(name, principal.tenant) is not None:
                desk.trees.close(name, principal.tenant)
            else:
                closed = await front.link.ask(wire.CloseSession(name, principal.tenant), wire.Closed)
                desk.forget(name, principal.tenant)
            if not closed.deferred:
                front.metrics.session_closed("client")
        except NotFoundError:
            pass
        return schemas.ClosedSession(session_id=name, deferred=closed.deferred, freed_pages=closed.freed_pages)

    router.post("/open_session", operation_id="native_open_session")(open_session)
    router.get("/open_session", include_in_schema=False)(open_session)
    router.post("/close_session", operation_id="native_close_session")(close_session)
    router.get("/close_session", include_in_schema=False)(close_session)


def _add_generate(router: APIRouter, desk: NativeDesk) -> None:
    front = desk.front

    async def generate(request: Request, body: schemas.GenerateBody) -> Response:
        """Generate: alone or in a session, streamed (`stream`) or not. A batch is answered with a list."""
        asker = asker_of(request, principal_of(request, Role.USER).tenant)
        front.check_open()
        jobs, is_list = jobs_of(body, front.text, front.world.new_id, front.world.seed)
        runs = [NativeRun(desk, job, asker) for job in jobs]
        if body.stream:
            settings = front.settings
            return EventStream(_events(runs[0], desk), runs[0].leave, keep_alive_s=settings.keep_alive_s, headers={})
        results = await while_connected(request, _results(runs))
        return Response(msgspec.json.encode(results if is_list else results[0]), media_type="application/json")

    streamed: dict[int | str, dict[str, object]] = {200: {"content": {"text/event-stream": {}}}}
    router.post("/generate", operation_id="native_generate", responses=streamed, response_model=Json | list[Json])(
        generate
    )
    router.put("/generate", include_in_schema=False)(generate)


async def _results(runs: list[NativeRun]) -> list[Json]:
    """All answers, or the first refusal with the others undone."""
    tasks = [asyncio.ensure_future(_result(run)) for run in runs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _result(run: NativeRun) -> Json:
    await run.enter()
    try:
        return await run.result()
    finally:
        await run.leave()


async def _events(run: NativeRun, desk: NativeDesk) -> AsyncIterator[bytes]:
    """Chunks, each with all that was said so far; one abort chunk for what is refused; [DONE]."""
    try:
        await run.enter()
        async for chunk in run.chunks():
            yield event_of(chunk)
    except SojournError as error:
        fault = native_fault(error)
        desk.front.metrics.rejected(fault)
        yield event_of(answers.refused(run.job.rid, fault.message, fault.status))
    yield DONE


def _add_control(router: APIRouter, desk: NativeDesk) -> None:
    front = desk.front

    unknown: dict[int | str, dict[str, object]] = {404: {"model": schemas.Refused}}

    @router.post("/abort_request", operation_id="native_abort_request", response_class=Response, responses=unknown)
    async def abort_request(request: Request, body: schemas.AbortBody) -> Response:
        """End the request of exactly this id, or all of this key's. 404 if there is none of this id."""
        reach = principal_of(request, Role.USER).reach
        if desk.live.abort(reach, None if body.abort_all else body.rid) or body.abort_all:
            return Response(status_code=200)
        fault = fault_of(NotFoundError(f"no request {body.rid!r} is running", param="rid"))
        return JSONResponse(fault.body(), fault.status)

    async def flush_cache(request: Request) -> PlainTextResponse:
        """Drop cached and idle KV; sessions and their histories live. 400 while anything runs."""
        principal_of(request, Role.ADMIN)
        try:
            await front.link.ask(wire.Flush(), wire.Done)
        except ConflictError:
            return PlainTextResponse(NOT_FLUSHED, 400)
        return PlainTextResponse(FLUSHED)

    flushed: dict[int | str, dict[str, object]] = {400: {"content": {"text/plain": {}}}}
    router.post("/flush_cache", operation_id="native_flush_cache", response_class=PlainTextResponse, responses=flushed)(
        flush_cache
    )
    router.get("/flush_cache", include_in_schema=False)(flush_cache)


def _add_information(router: APIRouter, desk: NativeDesk) -> None:
    front = desk.front

    silent: dict[int | str, dict[str, object]] = {503: {"description": "No token could be generated."}}

    @router.get("/health_generate", operation_id="native_health_generate", response_class=Response, responses=silent)
    async def health_generate(request: Request) -> Response:
        """200 once a token was really generated, 503 if none could be."""
        try:
            await while_connected(request, generate_one_token(front, request_id_of(request)))
        except SojournError:
            return Response(status_code=503)
        return Response(status_code=200)

    async def model_info(request: Request) -> Json:
        """The model."""
        principal_of(request, Role.USER)
        card = front.text.card
        return {
            "model_path": card.name,
            "tokenizer_path": card.name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }

    async def server_info(request: Request) -> Json:
        """The server and its bounds."""
        principal_of(request, Role.USER)
        card = front.text.card
        pool = (await front.link.ask(wire.ShowPools(), wire.Pools)).pools[0]
        return {
            "model_path": card.name,
            "tokenizer_path": card.name,
            "served_model_name": card.name,
            "version": front.settings.version,
            "status": "ready" if front.is_ready else "starting",
            "context_length": card.context,
            "page_size": card.page_size,
            "max_total_num_tokens": (pool.total - pool.reserved) * card.page_size,
            "max_running_requests": card.max_running,
            "kv_cache_dtype": card.kv_dtype,
            "enable_streaming_session": True,
            "internal_states": [],
        }

    for path, endpoint in (("model_info", model_info), ("server_info", server_info)):
        router.get(f"/{path}", operation_id=f"native_{path}", response_model=Json)(endpoint)
        router.get(f"/get_{path}", include_in_schema=False, response_model=Json)(endpoint)
