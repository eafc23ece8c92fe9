"""From a caller's thread to the engine's: start a request, stream its events back, ask a question.

Knows the engine's thread and the text side of a model; knows no conversation.
"""

from collections.abc import Callable
from typing import TypeVar

from sojourn.api.options import TurnOptions
from sojourn.api.text.glue import Glue
from sojourn.api.text.stop_strings import StopStrings, TextStream
from sojourn.app.turn import Ended, TurnState
from sojourn.core.errors import NotFoundError, SojournError
from sojourn.core.ids import RequestId
from sojourn.engine.events import Event, FinishedEvent
from sojourn.engine.thread import EngineStoppedError, EngineThread
from sojourn.models.tokenizer import Tokenizer
from sojourn.sessions.service import SessionService, TurnParams

T = TypeVar("T")
StartCommand = Callable[[SessionService, TurnParams], RequestId]

_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that turn n and turn m of one engine get different seeds


class EngineRoom:
    """The engine's thread and what a turn needs of the model beside it. Shared by an engine's conversations."""

    def __init__(
        self,
        thread: EngineThread[SessionService],
        service: SessionService,
        *,
        name: str,
        tokenizer: Tokenizer,
        glue: Glue,
        eos_ids: frozenset[int],
        vocab_size: int,
        seed: int,
    ) -> None:
        self._thread = thread
        self._service = service  # touched only on the engine's thread
        self._seed = seed
        self._num_turns = 0
        self.name = name
        self.tokenizer = tokenizer
        self.glue = glue
        self.eos_ids = eos_ids
        self.vocab_size = vocab_size

    @property
    def is_stopped(self) -> bool:
        return self._thread.stopped is not None

    def call(self, question: Callable[[SessionService], T]) -> T:
        """Ask on the engine's thread, between two steps, and wait for the answer."""
        return self._thread.call(question).result()

    def start(
        self,
        prompt_ids: tuple[int, ...],
        options: TurnOptions,
        command: StartCommand,
        *,
        session_id: str | None = None,
        record: Callable[[TurnState], None] = lambda _: None,
    ) -> TurnState:
        """Start a request and return its state, running. A refusal is raised and leaves nothing behind."""
        stops = options.stop_strings
        params = TurnParams(
            sampling=options.sampling((self._seed + self._num_turns * _GOLDEN) % 2**64),
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
        answer = self._thread.stream(lambda service: command(service, params), self._sink(state, session_id))

        def interrupt() -> None:
            self._thread.call(lambda service: service.interrupt_request(answer.result()))

        state.interrupt = interrupt
        try:
            answer.result()
        except SojournError:
            raise
        except BaseException:  # Ctrl-C while the engine was taking the request: it may have, so it must end
            if not answer.cancel() and answer.exception() is None:
                state.stop()
                state.drain()
            raise
        self._num_turns += 1
        return state

    def _sink(self, state: TurnState, session_id: str | None) -> Callable[[Event | EngineStoppedError], None]:
        """Called on the engine's thread, where the service may be asked directly."""

        def sink(event: Event | EngineStoppedError) -> None:
            state.events.put(Ended(event, self._pages_held(session_id)) if isinstance(event, FinishedEvent) else event)

        return sink

    def _pages_held(self, session_id: str | None) -> int:
        if session_id is None:
            return 0
        try:
            return self._service.pages_held(session_id)
        except NotFoundError:  # closed while the turn ran
            return 0
