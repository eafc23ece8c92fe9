"""The engine's one thread: takes commands from the inbox, turns the crank, hands events to sinks. It runs at its own pace.

    any thread ── call ──▶ inbox ──▶ engine thread: command(crank) ──▶ Future
                                     engine thread: crank.step()   ──▶ sink of each request

A refusal (`SojournError`) goes to the one who asked. Anything else is ours and stops the engine: every waiting future
and every open stream gets `EngineStoppedError` with the report, and so does whoever calls later.
"""

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread, current_thread
from typing import Any, Generic, Protocol, TypeVar

from sojourn.core.errors import CorruptionError, SojournError
from sojourn.core.ids import RequestId
from sojourn.engine.events import Event, FinishedEvent, Notice
from sojourn.engine.inbox import Inbox


class EngineStoppedError(SojournError):
    """The engine runs no more. `report` says why, in full."""

    def __init__(self, message: str, report: str = "") -> None:
        super().__init__(message)
        self.report = report or message

    def anew(self) -> "EngineStoppedError":
        """One that says the same, to be raised once: each raise adds to what an error holds."""
        return EngineStoppedError(str(self), self.report)


class Crank(Protocol):
    """What the thread turns: an EngineLoop, or what decorates one."""

    @property
    def has_work(self) -> bool: ...

    def step(self) -> Sequence[Event | Notice]: ...

    def wake_in(self) -> float | None:
        """Seconds until `step` is due although there is no work; None: not before a command."""
        ...

    def shut_down(self) -> None:
        """`step` is not called again. What still runs has ended when this returns; raises its fault, if any."""
        ...

    def report(self, error: CorruptionError) -> str:
        """What to write before stopping on a broken law."""
        ...


Sink = Callable[[Event | EngineStoppedError], None]  # called on the engine's thread; must neither block nor raise
Listener = Callable[[Notice], None]  # the same, for what belongs to no request

_CLOSED = "the engine was closed"
C = TypeVar("C", bound=Crank)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Command(Generic[C]):
    run: Callable[[C], Any]  # the future's own type is known to `call` only
    answer: "Future[Any]"
    sink: Sink | None = None


def _ignore(notice: Notice) -> None:
    """Nobody listens."""


def _no_hook() -> None:
    """Nobody wants to know."""


class EngineThread(Generic[C]):
    """Owns the crank from `start` on: nobody else may touch it."""

    def __init__(
        self, crank: C, *, listener: Listener = _ignore, told: Callable[[], None] = _no_hook, name: str = "engine"
    ) -> None:
        """`told` is called on the thread whenever all that came of a step, or of the commands before it, has been told:
        whoever passes it on to another thread need wake that one once only."""
        self._crank = crank
        self._listener = listener
        self._told = told
        self._inbox: Inbox[_Command[C]] = Inbox()
        self._sinks: dict[RequestId, Sink] = {}
        self._closed: EngineStoppedError | None = None  # told to stop, by any thread
        self._fault: EngineStoppedError | None = None  # written on the engine's thread only, so neither hides the other
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, command: Callable[[C], T]) -> "Future[T]":
        """Run `command` on the engine's thread between two steps; its result or refusal is the future's."""
        answer: Future[T] = Future()
        self._put(_Command(command, answer))
        return answer

    def stream(self, command: Callable[[C], RequestId], sink: Sink) -> "Future[RequestId]":
        """As `call`, for a command that starts a request: every event of it goes to `sink`, from the first on."""
        answer: Future[RequestId] = Future()
        self._put(_Command(command, answer, sink))
        return answer

    def stop(self) -> None:
        """End the thread after the step it is in, and wait for it. What is open then is told. May be called twice."""
        if self._closed is None:
            self._closed = EngineStoppedError(_CLOSED)
        self._refuse_waiting(self._closed)
        if self._thread.is_alive() and self._thread is not current_thread():
            self._thread.join()

    @property
    def stopped(self) -> EngineStoppedError | None:
        """Why the engine runs no more, in an error of the caller's own; None while it does.

        A fault counts for more than having been told to.
        """
        stopped = self._closed if self._fault is None else self._fault
        return None if stopped is None else stopped.anew()

    @property
    def fault(self) -> EngineStoppedError | None:
        """The broken law, or other fault of ours, that stopped it, be it in its last step; final once `stop` returned."""
        return self._fault

    def _put(self, command: _Command[C]) -> None:
        if not self._inbox.put(command):
            command.answer.set_exception(self.stopped or EngineStoppedError(_CLOSED))

    def _refuse_waiting(self, error: EngineStoppedError) -> None:
        """Take no more commands, and answer those that nobody has taken."""
        for command in self._inbox.close():
            if command.answer.set_running_or_notify_cancel():
                command.answer.set_exception(error.anew())

    # -- on the engine's thread

    def _run(self) -> None:
        try:
            while self.stopped is None:
                self._obey(self._inbox.take() if self._crank.has_work else self._inbox.wait(self._crank.wake_in()))
                if self.stopped is None:
                    self._dispatch(self._crank.step())
        except Exception as error:  # noqa: BLE001 - the last line of defence: nothing below catches a broken law
            self._fail(error)
        try:
            self._crank.shut_down()
        except Exception as error:  # noqa: BLE001 - a fault of the last step; one before it counts for more
            if self._fault is None:
                self._fail(error)
        for sink in self._sinks.values():
            if (stopped := self.stopped) is not None:
                sink(stopped)
        self._sinks.clear()

    def _fail(self, error: Exception) -> EngineStoppedError:
        fault = self._fault = self._last_words(error)
        self._refuse_waiting(fault)
        return fault

    def _last_words(self, error: Exception) -> EngineStoppedError:
        message = f"the engine has stopped: {type(error).__name__}: {error}"
        pages = ""
        if isinstance(error, CorruptionError):
            try:
                pages = self._crank.report(error)
            except Exception as another:  # noqa: BLE001 - those who wait are told, whatever state things are in
                pages = f"no report: {type(another).__name__}: {another}"
        return EngineStoppedError(message, f"{message}\n{traceback.format_exc()}{pages}")

    def _obey(self, commands: list[_Command[C]]) -> None:
        try:
            self._run_commands(commands)
        finally:
            if commands:
                self._told()

    def _run_commands(self, commands: list[_Command[C]]) -> None:
        for index, command in enumerate(commands):
            if not command.answer.set_running_or_notify_cancel():
                continue
            try:
                result = command.run(self._crank)
            except SojournError as refusal:
                command.answer.set_exception(refusal)
                continue
            except Exception as error:  # noqa: BLE001 - as in `_run`; here with those who wait for an answer
                fault = self._fail(error)
                for waiting in commands[index:]:
                    if waiting is command or waiting.answer.set_running_or_notify_cancel():
                        waiting.answer.set_exception(fault.anew())
                return
            if command.sink is not None:
                self._sinks[result] = command.sink
            command.answer.set_result(result)

    def _dispatch(self, events: Sequence[Event | Notice]) -> None:
        for event in events:
            if isinstance(event, Notice):
                self._listener(event)
                continue
            sink = self._sinks.get(event.request_id)
            if sink is None:
                continue
            sink(event)
            if isinstance(event, FinishedEvent):
                del self._sinks[event.request_id]  # only now: one that fails on its last event is told of the fault
        if events:
            self._told()
