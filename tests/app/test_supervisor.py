"""The supervisor: a signal that comes while it is starting its processes, and processes that end or cannot be started."""

import asyncio
import errno
import signal
from collections.abc import Callable, Sequence

import pytest

from sojourn.app.processes import EXIT_OPTIONS
from sojourn.app.ready import ReadyPipe, tell_ready
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


# -- processes that end by themselves, or cannot be started

Start = Callable[[int], Child]  # given the descriptor in which it says that it is ready


def runs(ready_fd: int) -> Child:
    return Child()


def ends(code: int, *, was_ready: bool = False) -> Start:
    def start(ready_fd: int) -> Child:
        child = Child()
        tell_ready(ready_fd if was_ready else None)
        child._code = code
        child._ended.set()
        return child

    return start


def fails(error: Exception) -> Start:
    def start(ready_fd: int) -> Child:
        raise error

    return start


def supervised(monkeypatch: pytest.MonkeyPatch, name: str, starts: Sequence[Start]) -> tuple[int, int]:
    """The exit code, and how many starts of that part were tried. A signal comes with the last; the other part runs."""
    monkeypatch.setattr("sojourn.app.supervisor.BACKOFF_FIRST_S", 0.0)
    tried = 0

    async def scenario(front: Part, engine: Part) -> int:
        async def start(*arguments: object, stdin: int, pass_fds: tuple[int, ...]) -> Child:
            nonlocal tried
            if arguments[2] != name:
                return Child()
            tried += 1
            if tried == len(starts):
                signal.raise_signal(signal.SIGTERM)
            return starts[tried - 1](*pass_fds)

        monkeypatch.setattr("asyncio.create_subprocess_exec", start)
        return await asyncio.wait_for(Supervisor(front, engine, PATIENCE).run(), PATIENCE)

    with ReadyPipe() as one, ReadyPipe() as other:
        front, engine = (
            Part(part, part, "{}", (ready.fd,), ready) for part, ready in (("front", one), ("engine", other))
        )
        return asyncio.run(scenario(front, engine)), tried


PARTS = pytest.mark.parametrize("name", ["front", "engine"])


@PARTS
def test_options_at_fault_end_the_server(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert supervised(monkeypatch, name, [ends(-9), ends(EXIT_OPTIONS), runs]) == (EXIT_OPTIONS, 2)


@PARTS
def test_what_was_ready_once_is_started_again_whatever_it_finds(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Killed for want of memory, and so finds too little; or a file is gone for a moment."""
    starts = [ends(-9, was_ready=True), ends(EXIT_OPTIONS), ends(EXIT_OPTIONS), runs]
    assert supervised(monkeypatch, name, starts) == (0, 4)


@PARTS
def test_a_process_that_the_system_cannot_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    starts = [fails(OSError(errno.EAGAIN, "no more")), fails(OSError(errno.ENOMEM, "no memory")), runs]
    assert supervised(monkeypatch, name, starts) == (0, 3)
    assert f"the {name} could not be started ([Errno {errno.ENOMEM}] no memory); it is started again" in caplog.text


@PARTS
def test_a_fault_of_the_supervisor_itself_is_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        supervised(monkeypatch, name, [fails(ZeroDivisionError()), runs])


def test_nobody_needs_to_know_that_a_process_is_ready() -> None:
    with ReadyPipe() as pipe:
        assert not pipe.was_told()
        tell_ready(None)
        assert not pipe.was_told()
        tell_ready(pipe.fd)
        assert pipe.was_told()
        assert pipe.was_told(), "it is not forgotten"
