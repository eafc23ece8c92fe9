"""Requests that are alive, by the id their client knows: exact, one at a time. What `/abort_request` reaches."""

from collections.abc import Iterator
from contextlib import contextmanager

from sojourn.api.generation import Generation
from sojourn.core.errors import ClientError


class LiveRequest:
    """One request, from its arrival to its last word."""

    def __init__(self) -> None:
        self._generation: Generation | None = None
        self._is_aborted = False

    def started(self, generation: Generation) -> None:
        """The engine has it; if it was aborted meanwhile, this is when that is told."""
        self._generation = generation
        if self._is_aborted:
            generation.abort()

    def abort(self) -> None:
        self._is_aborted = True
        if self._generation is not None and not self._generation.has_ended:
            self._generation.abort()


class LiveRequests:
    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], LiveRequest] = {}  # by tenant and id

    @contextmanager
    def hold(self, tenant: str, rid: str) -> Iterator[LiveRequest]:
        """The request is alive inside. Raises ClientError while another one of this name is."""
        if (tenant, rid) in self._requests:
            raise ClientError(f"Duplicate request ID detected: {rid}", param="rid", code="duplicate_request")
        live = self._requests[tenant, rid] = LiveRequest()
        try:
            yield live
        finally:
            del self._requests[tenant, rid]

    def abort(self, reach: str | None, rid: str | None) -> int:
        """End the request of that name, or all (None), as far as `reach` goes (None: everywhere). How many there were."""
        found = [
            live for (tenant, name), live in self._requests.items() if reach in (None, tenant) and rid in (None, name)
        ]
        for live in found:
            live.abort()
        return len(found)
