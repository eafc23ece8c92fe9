"""Whether the server lives, takes work, and works: /live, /ready, /health. Open to everyone; says nothing of anyone."""

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from sojourn.api import wire
from sojourn.api.errors import fault_of
from sojourn.api.front import Front
from sojourn.api.requests import front_of
from sojourn.core.errors import SojournError
from sojourn.core.step import SamplingParams

router = APIRouter(tags=["health"])


def is_alive(front: Front) -> bool:
    """The engine's thread answers, and advances while it has work. One that is being started has its time, too."""
    now, stale = front.world.clock(), front.settings.engine_stale_s
    link = front.link
    if not link.is_up:
        return link.num_engines == 0 or now - link.heard_at < front.settings.engine_start_s
    return now - link.heard_at < stale and now - link.progress_at < stale


def is_ready(front: Front) -> bool:
    return front.link.is_up and not front.is_draining and is_alive(front)


def _status(front: Front, is_fine: bool) -> JSONResponse:
    """What is told with it helps whoever looks at a probe that fails."""
    state = "draining" if front.is_draining else "ready" if front.link.is_up else "engine down"
    headers = {} if is_fine else {"retry-after": str(front.settings.retry_after_s)}
    return JSONResponse({"ok": is_fine, "state": state}, 200 if is_fine else 503, headers)


@router.get("/live", operation_id="live")
async def live(request: Request) -> JSONResponse:
    """200 while the engine makes progress or is truly idle; 503 otherwise: restart the server."""
    front = front_of(request)
    return _status(front, is_alive(front))


@router.get("/ready", operation_id="ready")
async def ready(request: Request) -> JSONResponse:
    """200 while new work is taken."""
    front = front_of(request)
    return _status(front, is_ready(front))


@router.get("/health", operation_id="health")
async def health(request: Request, deep: bool = Query(default=False)) -> JSONResponse:
    """As /ready; `?deep=1` generates one token, too."""
    front = front_of(request)
    if not is_ready(front) or not deep:
        return _status(front, is_ready(front))
    try:
        await generate_one_token(front)
    except SojournError as error:
        fault = fault_of(error)
        return JSONResponse(fault.body(), 503, dict(fault.headers))
    return _status(front, True)


async def generate_one_token(front: Front) -> None:
    """Raises what went wrong."""
    token = front.text.card.vocab_size // 2
    command = wire.Start(None, "", [token], SamplingParams(), 1, ignore_eos=True)
    async with front.generate(command) as generation:
        await generation.finish()
