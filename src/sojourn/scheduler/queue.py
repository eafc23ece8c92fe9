"""Requests that wait for pages or a batch place, oldest arrival first. A retracted one returns to its old place."""

from bisect import insort
from collections.abc import Iterator

from sojourn.core.errors import law
from sojourn.scheduler.request import Request, RequestState


class WaitingQueue:
    """First come, first served, by `arrival`. Kept latest first, so the head comes and goes cheaply."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return reversed(self._requests)

    def push(self, request: Request) -> None:
        law(request.state is RequestState.WAITING, "%s queues while %s", request.request_id, request.state)
        insort(self._requests, request, key=lambda waiting: -waiting.arrival)

    def head(self) -> Request | None:
        return self._requests[-1] if self._requests else None

    def first(self, count: int) -> list[Request]:
        """The oldest, oldest first."""
        return self._requests[: -count - 1 : -1]

    def remove(self, request: Request) -> None:
        self._requests.remove(request)
