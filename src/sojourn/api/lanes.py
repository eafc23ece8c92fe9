"""One turn of a session at a time, in order of arrival: who comes while one runs is refused, or waits its place in line.

The engine would refuse an overlap too; the line is here, where waiting costs nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sojourn.api.errors import LimitError
from sojourn.api.pace import Pace
from sojourn.core.errors import ConflictError


@dataclass(slots=True, eq=False)
class _Lane:
    waiting: "deque[asyncio.Future[None]]" = field(default_factory=deque)


LEAVING_TICKS = 32  # of the loop: whoever has gone away leaves the lane within these


class Lanes:
    def __init__(self, waiting_max: int, pace: Pace | None = None) -> None:
        self._waiting_max = waiting_max
        self._pace = pace  # of turns, for those who find the line full
        self._taken: dict[Hashable, _Lane] = {}

    @property
    def num_waiting(self) -> int:
        """Turns in line, of all sessions."""
        return sum(len(lane.waiting) for lane in self._taken.values())

    def is_taken(self, key: Hashable) -> bool:
        return key in self._taken

    @asynccontextmanager
    async def hold(self, key: Hashable, *, wait: bool) -> AsyncIterator[None]:
        """The lane is ours inside. Raises ConflictError if it is taken and we do not wait, LimitError if too many do."""
        if key in self._taken:
            await self._queue(key, wait)
        else:
            self._taken[key] = _Lane()
        try:
            yield
        finally:
            self._pass_on(key)

    async def _queue(self, key: Hashable, wait: bool) -> None:
        if not wait:
            for _ in range(LEAVING_TICKS):
                await asyncio.sleep(0)
                if key not in self._taken:
                    self._taken[key] = _Lane()
                    return
            raise ConflictError(
                "a turn of this session is running; wait for it, interrupt it, or send wait: true",
                param="session_id",
                code="session_busy",
            )
        lane = self._taken[key]
        if len(lane.waiting) >= self._waiting_max:
            raise LimitError(
                f"{self._waiting_max} turns wait for this session already, which is the bound",
                param="session_id",
                code="session_queue_full",
                retry_after_s=None if self._pace is None else self._pace.turn_away(),
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on(key)  # the lane was handed to us as we left
            elif turn in lane.waiting:
                lane.waiting.remove(turn)
            raise

    def _pass_on(self, key: Hashable) -> None:
        """To the next in line, or to nobody."""
        lane = self._taken[key]
        while lane.waiting:
            turn = lane.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._taken[key]
