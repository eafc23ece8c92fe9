"""Whom to stop when pages are short: the youngest, so that the oldest always moves. Its output is kept."""

from collections.abc import Iterable, Sequence

from sojourn.scheduler.request import Request


def youngest(running: Iterable[Request]) -> Request | None:
    """The running request that arrived last."""
    return max(running, key=lambda request: request.arrival, default=None)


class ForcedRetraction:
    """A test hook: names a victim every `every` steps, whatever the pages say.

    A victim has produced a token since it was admitted, or was never retracted before: so even a cache that keeps
    nothing of a retracted request lets every request finish.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._steps = 0

    def victim(self, running: Sequence[Request]) -> Request | None:
        """Called once per planned step; the youngest that may be retracted at every n-th."""
        if not running:
            return None
        self._steps += 1
        if self._steps % self._every:
            return None
        return youngest(r for r in running if r.num_retractions == 0 or r.num_outputs > r.outputs_at_admission)
