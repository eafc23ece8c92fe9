"""Around every request: its id, the bound of its body, and an answer for what nobody else has answered. Plain ASGI.

Knows no route. A request id that the client chose is exact, and refused while another request of that name runs.
"""

import json
import logging
from collections.abc import Callable, Mapping

from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sojourn.api.errors import Fault, TooLargeError, fault_of, type_of
from sojourn.api.requests import checked_request_id
from sojourn.core.errors import ClientError, ConflictError, SojournError

logger = logging.getLogger("sojourn.front")


class Envelope:
    """The outermost application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_bytes_max: int,
        new_id: Callable[[], str],
        answered: Callable[[str, int], None],
        long_bodies: Mapping[str, int] | None = None,
    ) -> None:
        """`long_bodies`: the bound of those paths that have another one, and read bodies piece by piece."""
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._long_bodies = long_bodies or {}
        self._new_id = new_id
        self._answered = answered  # told route and status of every answer
        self._live: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        has_begun = is_complete = False
        request_id = self._new_id()

        async def send_with_id(message: Message) -> None:
            nonlocal has_begun, is_complete
            if message["type"] == "http.response.start":
                has_begun = True
                self._answered(_route_of(scope), message["status"])
                kept = [header for header in message["headers"] if header[0].lower() != b"x-request-id"]
                message = {**message, "headers": [*kept, (b"x-request-id", request_id.encode())]}
            await send(message)
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            if (own := headers.get(b"x-request-id")) is not None:
                chosen = checked_request_id(own.decode("latin-1"))
                if chosen in self._live:
                    raise ConflictError(f"request {chosen} is running", param="X-Request-ID", code="duplicate_request")
                request_id = chosen
            scope.setdefault("state", {})["request_id"] = request_id
            bound = self._long_bodies.get(scope["path"], self._body_bytes_max)
            self._check_length(headers.get(b"content-length"), bound)
            self._live.add(request_id)
            try:
                await self._app(scope, self._bounded(receive, bound), send_with_id)
            finally:
                self._live.discard(request_id)
        except SojournError as error:
            if not has_begun:
                await send_fault(fault_of(error), send_with_id)
        except Exception:
            logger.exception("request %s failed", request_id)
            if not has_begun:
                await send_fault(Fault(500, "the server has made a mistake", type_of(500)), send_with_id)
            elif not is_complete:
                raise  # the connection is closed: half an answer must not look whole

    def _check_length(self, length: bytes | None, bound: int) -> None:
        if length is not None and length.isdigit() and int(length) > bound:
            raise self._too_large(bound)

    def _too_large(self, bound: int) -> ClientError:
        return TooLargeError(f"the body is over {bound:,} bytes", code="body_too_large")

    def _bounded(self, receive: Receive, bound: int) -> Receive:
        taken = 0

        async def receive_bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > bound:
                # The one kind that the body's reader lets through.
                raise HTTPException(413, str(self._too_large(bound)))
            return message

        return receive_bounded


def _route_of(scope: Scope) -> str:
    """The route as it is declared: a label must not carry a name."""
    route = scope.get("route")
    return route.path if isinstance(route, APIRoute) else "other"


async def send_fault(fault: Fault, send: Send) -> None:
    body = json.dumps(fault.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in fault.headers.items()]
    await send({"type": "http.response.start", "status": fault.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
