"""Whom the scheduler asks how far to guess. Numbers only: no tokens, no pages, no drafter."""

from typing import Protocol

from sojourn.scheduler.request import Request


class DraftPolicy(Protocol):
    def drafts_for(self, request: Request) -> int:
        """The most drafts worth verifying in the request's next step; 0: none. Asked once per planned decode."""
        ...

    def settled(self, request: Request, drafted: int, accepted: int) -> None:
        """Of `drafted` guesses, at least one, `accepted` stood."""
        ...

    def stepped(self, rows: int, seconds: float) -> None:
        """A step of decodes and their drafts, `rows` positions in all, took so long."""
        ...

    def ended(self, request: Request) -> None:
        """The request is over; nothing need be remembered of it."""
        ...


class FixedDrafts:
    """The same number always."""

    def __init__(self, drafts_max: int) -> None:
        self._drafts_max = drafts_max

    def drafts_for(self, request: Request) -> int:
        return self._drafts_max

    def settled(self, request: Request, drafted: int, accepted: int) -> None:
        pass

    def stepped(self, rows: int, seconds: float) -> None:
        pass

    def ended(self, request: Request) -> None:
        pass
