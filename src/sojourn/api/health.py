"""Whether the server lives, takes work, and works: /live, /ready, /health, open to everyone; and /metrics, by key."""

import asyncio
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from sojourn.api import wire
from sojourn.api.account import Asker
from sojourn.api.auth import Role, principal_of
from sojourn.api.errors import fault_of
from sojourn.api.front import Front
from sojourn.api.metrics import CONTENT_TYPE
from sojourn.api.requests import front_of, request_id_of
from sojourn.api.streaming import while_connected
from sojourn.core.errors import SojournError
from sojourn.core.step import SamplingParams

router = APIRouter(tags=["health"])


def _status(front: Front, is_fine: bool) -> JSONResponse:
    """What is told with it helps whoever looks at a probe that fails."""
    state = "draining" if front.is_draining else "ready" if front.link.is_up else "engine down"
    headers = {} if is_fine else {"retry-after": str(front.settings.retry_after_s)}
    return JSONResponse({"ok": is_fine, "state": state}, 200 if is_fine else 503, headers)


@router.get("/live", operation_id="live")
async def live(request: Request) -> JSONResponse:
    """200 while the engine makes progress or is truly idle; 503 otherwise: restart the server."""
    front = front_of(request)
    return _status(front, front.is_alive)


@router.get("/ready", operation_id="ready")
async def ready(
    request: Request,
    wait: Annotated[float, Query(ge=0, le=600, allow_inf_nan=False, description="seconds to wait for the engine")] = 0,
) -> JSONResponse:
    """200 while new work is taken."""
    front = front_of(request)
    if wait:
        with suppress(TimeoutError):
            await asyncio.wait_for(while_connected(request, front.link.up.wait()), wait)
    return _status(front, front.is_ready)


@router.get("/health", operation_id="health")
async def health(request: Request, deep: Annotated[bool, Query()] = False) -> JSONResponse:
    """As /ready; `?deep=1` generates one token, too."""
    front = front_of(request)
    if not front.is_ready or not deep:
        return _status(front, front.is_ready)
    try:
        await while_connected(request, generate_one_token(front, request_id_of(request)))
    except SojournError as error:
        fault = fault_of(error)
        return JSONResponse(fault.body(), 503, dict(fault.headers))
    return _status(front, True)


async def generate_one_token(front: Front, request_id: str) -> None:
    """One probe after the other. Raises what went wrong."""
    token = front.text.card.vocab_size // 2
    command = wire.Start(None, "", [token], SamplingParams(), 1, ignore_eos=True)
    async with front.probing, front.generate(command, Asker(request_id)) as generation:
        await generation.finish()


@router.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    principal_of(request, Role.METRICS)
    return Response(front_of(request).metrics.expose(), media_type=CONTENT_TYPE)
