"""Errors in the shapes that this dialect's clients read. Wraps its routes; knows every error of ours.

refused         {"error": {"message", ...}}                                    400; 503 where there is no room now
wrong shape     {"object": "error", "message", "type": "Bad Request", "param", "code": 400}
"""

from collections.abc import Callable, Coroutine
from dataclasses import replace

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from sojourn.api.errors import Fault, fault_of, validation_fault
from sojourn.api.native.schemas import MANY, ONE
from sojourn.api.requests import front_of
from sojourn.core.errors import SojournError

_KEPT = (401, 403, 413)  # what is said to whoever may not ask at all, as everywhere


def native_fault(error: SojournError, retry_after_s: int = 1) -> Fault:
    """As the dialect has it: what the asker can change is 400, what time changes is 503."""
    fault = fault_of(error, retry_after_s)
    if fault.status == 429:
        return replace(fault, status=503, type="server_error")
    if 400 <= fault.status < 500 and fault.status not in _KEPT:
        return replace(fault, status=400, headers={})
    return fault


class NativeRoute(APIRoute):
    """A route whose errors are the dialect's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        handler = super().get_route_handler()

        async def answered(request: Request) -> Response:
            front = front_of(request)
            try:
                return await handler(request)
            except RequestValidationError as error:
                fault = validation_fault([_untagged(problem) for problem in error.errors()])
                front.metrics.rejected(fault)
                return JSONResponse(invalid(fault), 400)
            except SojournError as error:
                fault = native_fault(error, front.settings.retry_after_s)
                front.metrics.rejected(fault)
                return JSONResponse(fault.body(), fault.status, dict(fault.headers))

        return answered


def invalid(fault: Fault) -> dict[str, object]:
    return {"object": "error", "message": fault.message, "type": "Bad Request", "param": fault.param, "code": 400}


def _untagged(problem: dict[str, object]) -> dict[str, object]:
    """Without the names of the forms that a field may have."""
    where = problem.get("loc", ())
    assert isinstance(where, tuple)
    return {**problem, "loc": tuple(part for part in where if part not in (ONE, MANY))}
