"""The supervisor and a signal that comes while it is starting its processes."""

import asyncio
import signal

import pytest

from sojourn.app.supervisor import Part, Supervisor

PATIENCE = 30.0  # seconds; a guard against hanging, never waited for


class Stdin:
    def write(self, data: bytes) -> None:
        """Nobody reads it."""


class Child:
    """A process that runs until it is told to end."""

    pid = 1

    def __init__(self) -> None:
        self.stdin = Stdin()
        self._ended = asyncio.Event()
        self._code = 0

    def terminate(self) -> None:
        self._ended.set()

    def kill(self) -> None:
        self._code = -9
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return self._code


class Deaf(Child):
    def terminate(self) -> None:
        """It goes on."""


@pytest.mark.parametrize("kind", [Child, Deaf])
def test_a_signal_while_children_are_being_started_ends_them(
    monkeypatch: pytest.MonkeyPatch, kind: type[Child]
) -> None:
    monkeypatch.setattr("sojourn.app.supervisor.KILL_AFTER_S", 0.0)

    async def scenario() -> int:
        signalled = asyncio.Event()
        asked = 0

        async def start(*arguments: object, **options: object) -> Child:
            nonlocal asked
            asked += 1
            if asked == 2:
                signal.raise_signal(signal.SIGTERM)
            await signalled.wait()
            return kind()

        monkeypatch.setattr("asyncio.create_subprocess_exec", start)
        supervisor = Supervisor(Part("front", "f", "{}"), Part("engine", "e", "{}"), 0.0 if kind is Deaf else PATIENCE)
        running = asyncio.create_task(supervisor.run())
        await supervisor._stopping.wait()
        signalled.set()
        return await asyncio.wait_for(running, PATIENCE)

    assert asyncio.run(scenario()) == (0 if kind is Child else 1)
