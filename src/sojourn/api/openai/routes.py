"""The OpenAI surfaces under /v1: models, completions, chat completions."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from sojourn.api.auth import Role, principal_of
from sojourn.api.front import Front
from sojourn.api.openai import objects
from sojourn.api.openai.asking import check_model
from sojourn.api.openai.chat import add_chat
from sojourn.api.openai.completions import add_completions
from sojourn.api.requests import front_of
from sojourn.api.sessions.turns import SessionDesk


def openai_router(desk: SessionDesk) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["openai"])
    _add_models(router)
    add_completions(router, desk)
    add_chat(router, desk)
    return router


def _add_models(router: APIRouter) -> None:
    @router.get("/models", operation_id="list_models")
    async def models(request: Request) -> objects.ModelList:
        """The one model that is served."""
        principal_of(request, Role.USER)
        return objects.ModelList(data=[_model(front_of(request))])

    @router.get("/models/{model:path}", operation_id="get_model")
    async def model(request: Request, model: Annotated[str, Path(max_length=512)]) -> objects.Model:
        principal_of(request, Role.USER)
        front = front_of(request)
        check_model(front, model)
        return _model(front)


def _model(front: Front) -> objects.Model:
    card = front.text.card
    return objects.Model(id=card.name, created=int(front.started_at), max_model_len=card.context)
