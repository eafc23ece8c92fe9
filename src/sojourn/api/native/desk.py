"""What all requests of this dialect share: who is alive, and sessions of both kinds by name. Knows no HTTP."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sojourn.api import wire
from sojourn.api.front import Front
from sojourn.api.native.live import LiveRequests
from sojourn.api.native.trees import TreeSessions
from sojourn.core.errors import ConflictError
from sojourn.sessions.values import SessionExistsError


class NativeDesk:
    """What the runs of one front share. `forget` is told of sessions whose history changed under other surfaces."""

    def __init__(self, front: Front, forget: Callable[[str, str], None]) -> None:
        self.front = front
        self.forget = forget
        self.live = LiveRequests()
        self.trees = TreeSessions(front.world.clock)
        self._opening: set[tuple[str, str]] = set()
        self._planting: list[str] = []  # namespaces of trees that the engine is asked about, in order
        front.elsewhere = self._elsewhere

    @contextmanager
    def _opening_of(self, session_id: str, namespace: str) -> Iterator[None]:
        """The name is ours inside: the engine is asked meanwhile. ConflictError while it is somebody else's."""
        key = namespace, session_id
        if key in self._opening:
            raise ConflictError(f"session {session_id} is being opened", param="session_id")
        self._opening.add(key)
        try:
            yield
        finally:
            self._opening.discard(key)

    async def open(self, session_id: str, namespace: str, timeout_s: float | None, *, streaming: bool) -> None:
        """Raises ConflictError if one of that name is open or being opened, of either kind."""
        with self._opening_of(session_id, namespace):
            if streaming:
                if self.trees.find(session_id, namespace) is not None:
                    raise SessionExistsError(session_id)
                command = wire.OpenSession(session_id, namespace, timeout_s, elsewhere=self._elsewhere(namespace))
                await self.front.link.ask(command, wire.SessionInfo)
                return
            question = wire.CheckOpen(session_id, namespace, self._elsewhere(namespace))
            self._planting.append(namespace)
            try:
                await self.front.link.ask(question, wire.Done)
                self.trees.open(session_id, namespace, timeout_s)
            finally:
                self._planting.remove(namespace)

    def _elsewhere(self, namespace: str) -> wire.Elsewhere:
        """Trees, for the bounds that count all sessions. Those that are asked about count, too: the engine answers in order,
        so whoever asks next is told of them, and they of nobody who comes later."""
        total, own = self.trees.counts(namespace)
        return wire.Elsewhere(total + len(self._planting), own + self._planting.count(namespace))
