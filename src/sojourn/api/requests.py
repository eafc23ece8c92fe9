"""What a route finds with its request: the front, and the request's own id. Knows no surface."""

import re

from fastapi import Request

from sojourn.api.account import Asker
from sojourn.api.front import Front
from sojourn.core.errors import ClientError

REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")


def front_of(request: Request) -> Front:
    front = request.app.state.front
    assert isinstance(front, Front)
    return front


def request_id_of(request: Request) -> str:
    """The id of this request: the client's own (`X-Request-ID`), or one that the front made up."""
    request_id = request.scope["state"]["request_id"]
    assert isinstance(request_id, str)
    return request_id


def asker_of(request: Request, tenant: str) -> Asker:
    """For the log and the trace."""
    return Asker(request_id_of(request), tenant, request.headers.get("traceparent"))


def checked_request_id(value: str) -> str:
    if REQUEST_ID.match(value) is None:
        raise ClientError("a request id has 1 to 128 letters, digits and . _ : -", param="X-Request-ID")
    return value
