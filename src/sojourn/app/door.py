"""Between a caller's thread and the engine's: the caller touches nothing but simple queues.

A KeyboardInterrupt is raised in the main thread between any two steps of the interpreter. Locks, conditions and futures
written in Python do not survive that: one of them may stay locked for ever, and the engine would wait for it. A
`queue.SimpleQueue` does. So commands go through one to a thread of ours, where no interrupt is ever raised, and their
answers come back through another.

    caller ── SimpleQueue ──▶ door's thread ── inbox, futures ──▶ engine's thread
       ◀────────── SimpleQueue: the answer, done ──────────────────────┘
"""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, Generic, TypeVar

from sojourn.core.ids import RequestId
from sojourn.engine.thread import Crank, EngineThread, Sink

C = TypeVar("C", bound=Crank)
T = TypeVar("T")

Post = Callable[[], "Future[Any]"]  # the future's own type is known to `ask` only
Answers = queue.SimpleQueue["Future[Any]"]


class Door(Generic[C]):
    """One per engine. Any thread may use it, also from a finalizer."""

    def __init__(self, engine: EngineThread[C]) -> None:
        self._engine = engine
        self._posts: queue.SimpleQueue[tuple[Post, Answers] | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._serve, name="sojourn-door", daemon=True)

    def open(self) -> None:
        """Start the engine's thread and ours."""
        self._engine.start()
        self._thread.start()

    def ask(self, command: Callable[[C], T]) -> T:
        """Run `command` on the engine's thread, between two steps, and wait for what it gives or raises."""
        answer: Future[T] = self.post(command).get()
        return answer.result()

    def post(self, command: Callable[[C], object]) -> Answers:
        """As `ask`, without waiting: the answer arrives in the queue."""
        return self._send(lambda: self._engine.call(command))

    def stream(self, command: Callable[[C], RequestId], sink: Sink) -> Answers:
        """As `post`, for a command that starts a request: its events go to `sink`."""
        return self._send(lambda: self._engine.stream(command, sink))

    def close(self) -> None:
        """Stop the engine's thread and ours. What is open is told; whoever asks later too. May be called twice."""
        self._engine.stop()
        self._posts.put(None)

    @property
    def is_closed(self) -> bool:
        return self._engine.stopped is not None

    def _send(self, post: Post) -> Answers:
        self._check_is_open()
        answers: Answers = queue.SimpleQueue()
        self._posts.put((post, answers))
        self._check_is_open()  # if it closed meanwhile, the post may lie behind the last one that is ever taken
        return answers

    def _check_is_open(self) -> None:
        if (stopped := self._engine.stopped) is not None:
            raise stopped

    def _serve(self) -> None:
        while (item := self._posts.get()) is not None:
            post, answers = item
            post().add_done_callback(answers.put)
