"""Requests as the facade starts them: options and text on this side, the engine behind its door on the other.

Knows the door and the text side of a model; knows no conversation.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sojourn.api.options import TurnOptions
from sojourn.api.text.glue import Glue
from sojourn.api.text.stop_strings import StopStrings, TextStream
from sojourn.app.door import Door
from sojourn.app.turn import Ended, TurnState
from sojourn.core.errors import NotFoundError, SojournError
from sojourn.core.ids import RequestId
from sojourn.engine.events import Event, FinishedEvent
from sojourn.engine.thread import EngineStoppedError
from sojourn.models.tokenizer import Tokenizer
from sojourn.sessions.service import SessionService, TurnParams

T = TypeVar("T")
StartCommand = Callable[[SessionService, TurnParams], RequestId]

_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that turn n and turn m of one engine get different seeds


class EngineRoom:
    """The engine's thread and what a turn needs of the model beside it. Shared by an engine's conversations."""

    def __init__(
        self,
        door: Door[SessionService],
        service: SessionService,
        *,
        name: str,
        tokenizer: Tokenizer,
        glue: Glue,
        eos_ids: frozenset[int],
        vocab_size: int,
        seed: int,
    ) -> None:
        self._door = door
        self._service = service  # touched only on the engine's thread
        self._seed = seed
        self._turns = itertools.count()  # any thread takes the next one; a refused turn uses one up
        self.name = name
        self.tokenizer = tokenizer
        self.glue = glue
        self.eos_ids = eos_ids
        self.vocab_size = vocab_size

    @property
    def is_stopped(self) -> bool:
        return self._door.is_closed

    def call(self, question: Callable[[SessionService], T]) -> T:
        """Ask on the engine's thread, between two steps, and wait for the answer."""
        return self._door.ask(question)

    def tell(self, command: Callable[[SessionService], object]) -> None:
        """As `call`, without waiting, and nothing once the engine is stopped: for finalizers, which can do no more."""
        with suppress(EngineStoppedError):
            self._door.post(command)

    def start(
        self,
        prompt_ids: tuple[int, ...],
        options: TurnOptions,
        command: StartCommand,
        *,
        session_id: str | None = None,
        hold: Callable[[TurnState], None] = lambda _: None,
        record: Callable[[TurnState], None] = lambda _: None,
    ) -> TurnState:
        """Start a request and return its state, running. A refusal is raised and leaves nothing behind.

        `hold` is given the state before the engine is given the request, `record` when the turn has ended and stands.
        """
        stops = options.stop_strings
        params = TurnParams(
            sampling=options.sampling((self._seed + next(self._turns) * _GOLDEN) % 2**64),
            max_new_tokens=options.max_tokens,
            ignore_eos=options.ignore_eos,
            stop_matcher=StopStrings(self.tokenizer, stops) if stops else None,
        )
        state = TurnState(
            prompt_ids,
            TextStream(self.tokenizer, stops),
            keeps_logprobs=options.logprobs is not None,
            record=record,
        )
        started: list[RequestId] = []  # written on the engine's thread

        def begin(service: SessionService) -> RequestId:
            started.append(command(service, params))
            return started[0]

        def end(service: SessionService) -> None:
            """Decided where requests start: what is not started by now never will be, for posts keep their order."""
            if not end_started(service, started):
                state.refuse()

        def interrupt() -> None:
            try:
                self._door.post(end)
            except EngineStoppedError:
                state.refuse()

        state.interrupt = interrupt
        try:
            hold(state)
            self._door.stream(begin, self._sink(state, session_id)).get().result()
        except SojournError:
            state.refuse()
            raise
        except KeyboardInterrupt:  # while the engine was taking the request, or before
            state.stop()
            state.drain()
            raise
        return state

    def _sink(self, state: TurnState, session_id: str | None) -> Callable[[Event | EngineStoppedError], None]:
        """Called on the engine's thread, where the service may be asked directly."""

        def sink(event: Event | EngineStoppedError) -> None:
            state.take(Ended(event, self._pages_held(session_id)) if isinstance(event, FinishedEvent) else event)

        return sink

    def _pages_held(self, session_id: str | None) -> int:
        if session_id is None:
            return 0
        try:
            return self._service.pages_held(session_id)
        except NotFoundError:  # closed while the turn ran
            return 0


def end_started(service: SessionService, started: list[RequestId]) -> bool:
    """On the engine's thread: end the request, if it was started. True: its last event has come or will come."""
    if started:
        with suppress(NotFoundError):  # it has ended by itself
            service.interrupt_request(started[0])
    return bool(started)
