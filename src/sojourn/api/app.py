"""The HTTP application: every route around one front. A factory; knows no process and no socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from sojourn.api import health, pools
from sojourn.api.account import Tracer
from sojourn.api.auth import Keys
from sojourn.api.envelope import Envelope
from sojourn.api.errors import Fault, fault_of, type_of, validation_fault
from sojourn.api.front import Front
from sojourn.api.native.desk import NativeDesk
from sojourn.api.native.routes import native_router
from sojourn.api.openai.routes import openai_router
from sojourn.api.schemas import ErrorBody
from sojourn.api.sessions.routes import IMPORT_PATH, sessions_router
from sojourn.api.sessions.turns import SessionDesk
from sojourn.api.settings import FrontSettings, FrontWorld
from sojourn.api.streaming import ClientGoneError, NoAnswer
from sojourn.core.errors import SojournError

ERRORS: dict[int | str, dict[str, object]] = {
    status: {"model": ErrorBody} for status in (400, 401, 403, 404, 409, 413, 429, 500, 503)
}


class Application(FastAPI):
    """Its document says 400 where FastAPI's own would say 422."""

    def openapi(self) -> dict[str, object]:
        if not self.openapi_schema:
            document = super().openapi()
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
        return self.openapi_schema or {}


def make_app(
    settings: FrontSettings, world: FrontWorld, keys: Keys, tracer: Tracer | None = None
) -> tuple[Front, ASGIApp]:
    """The front, and the application around it."""
    front = Front(settings, world, tracer)
    desk = SessionDesk(front)
    front.link.on_session_ended = desk.session_ended
    front.on_new_engine = desk.forget_all

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        link = asyncio.create_task(front.link.run())
        link.add_done_callback(front.link_ended)
        try:
            yield
        finally:
            link.cancel()
            await asyncio.wait({link})
            if tracer is not None:
                await asyncio.to_thread(tracer.close)

    app = Application(
        title="Sojourn",
        version=settings.version,
        summary="An LLM serving engine whose centre is the streaming session",
        lifespan=lifespan,
        responses=ERRORS,
        redirect_slashes=False,
    )
    app.state.front, app.state.keys = front, keys
    app.include_router(health.router)
    app.include_router(pools.router)
    app.include_router(sessions_router(desk))
    app.include_router(openai_router(desk))
    app.include_router(native_router(NativeDesk(front, desk.forget)))
    _answer_errors(app, front)
    return front, Envelope(
        app,
        body_bytes_max=settings.body_bytes_max,
        new_id=world.new_id,
        answered=front.metrics.answered,
        long_bodies={IMPORT_PATH: settings.import_bytes_max},
    )


def _answer_errors(app: FastAPI, front: Front) -> None:
    @app.exception_handler(SojournError)
    async def ours(request: Request, error: SojournError) -> JSONResponse:
        fault = fault_of(error, front.settings.retry_after_s)
        front.metrics.rejected(fault)
        return _response(fault)

    @app.exception_handler(RequestValidationError)
    async def shape(request: Request, error: RequestValidationError) -> JSONResponse:
        fault = validation_fault(error.errors())
        front.metrics.rejected(fault)
        return _response(fault)

    @app.exception_handler(ClientGoneError)
    async def gone(request: Request, error: ClientGoneError) -> NoAnswer:
        return NoAnswer()

    @app.exception_handler(Exception)  # the envelope logs it
    async def mistake(request: Request, error: Exception) -> JSONResponse:
        return _response(Fault(500, "the server has made a mistake", type_of(500)))

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> JSONResponse:
        code = "body_too_large" if error.status_code == 413 else None
        kind = type_of(error.status_code)
        fault = Fault(error.status_code, str(error.detail), kind, code=code, headers=error.headers or {})
        return _response(fault)


def _response(fault: Fault) -> JSONResponse:
    return JSONResponse(fault.body(), fault.status, dict(fault.headers))
