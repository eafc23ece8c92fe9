"""The door between a caller's thread and the engine's: answers, refusals, the end, and a storm of Ctrl-C."""

import queue
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread

import pytest

from sojourn.app.door import Door
from sojourn.core.errors import ClientError, CorruptionError
from sojourn.core.ids import RequestId
from sojourn.engine.events import TokensEvent
from sojourn.engine.thread import EngineStoppedError, EngineThread

REQUEST = RequestId("r")
PATIENCE = 30.0  # seconds; a guard against hanging, never waited for

STORM = """
import signal
from sojourn.app.door import Door
from sojourn.engine.thread import EngineThread
from tests.app.test_door import Crank

door = Door(EngineThread(Crank()))
door.open()
signal.signal(signal.SIGALRM, signal.default_int_handler)
interrupts = 0
for number in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + number % 20 * 0.0001)
        while True:
            door.ask(lambda crank: None)
    except KeyboardInterrupt:
        interrupts += 1
print(interrupts, door.ask(lambda crank: "alive"))
door.close()
"""


class Crank:
    """Has as much work as there are events to give."""

    def __init__(self) -> None:
        self.events: list[TokensEvent] = []

    @property
    def has_work(self) -> bool:
        return bool(self.events)

    def step(self) -> list[TokensEvent]:
        events, self.events = self.events, []
        return events

    def wake_in(self) -> float | None:
        return None

    def shut_down(self) -> None:
        """Nothing runs."""

    def report(self, error: CorruptionError) -> str:
        return str(error)

    def begin(self) -> RequestId:
        self.events.append(TokensEvent(REQUEST, ()))
        return REQUEST


@pytest.fixture
def door() -> Iterator[Door[Crank]]:
    door = Door(EngineThread(Crank()))
    door.open()
    yield door
    door.close()


def refuse(crank: Crank) -> None:
    raise ClientError("no", param="x")


def test_an_answer_and_a_refusal_reach_the_one_who_asked(door: Door[Crank]) -> None:
    assert door.ask(lambda crank: len(crank.events)) == 0
    with pytest.raises(ClientError, match="no"):
        door.ask(refuse)
    assert door.ask(lambda crank: 1) == 1, "a refusal stops nothing"


def test_commands_keep_their_order(door: Door[Crank]) -> None:
    order: list[int] = []
    answers = [door.post(lambda crank, number=number: order.append(number)) for number in range(20)]  # type: ignore[misc]
    for answer in answers:
        answer.get().result()
    assert order == list(range(20))


def test_events_of_a_request_go_to_its_sink(door: Door[Crank]) -> None:
    seen: list[object] = []
    assert door.stream(Crank.begin, seen.append).get().result() == REQUEST
    door.ask(lambda crank: None)  # a step lies between two commands at the latest
    door.close()
    assert seen[0] == TokensEvent(REQUEST, ())
    assert isinstance(seen[1], EngineStoppedError)


def test_a_closed_door_says_so_at_once(door: Door[Crank]) -> None:
    door.close()
    door.close()
    assert door.is_closed
    frames = set()
    for _ in range(3):
        with pytest.raises(EngineStoppedError, match="closed") as raised:
            door.ask(lambda crank: None)
        frames.add(len(raised.traceback))
    assert len(frames) == 1, "each is raised once"


class ClosingPosts:
    """The queue to the door's thread, where the door closes just before the first post goes in."""

    def __init__(self, door: Door[Crank]) -> None:
        self._door = door
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._is_first = True

    def put(self, item: object) -> None:
        if self._is_first:
            self._is_first = False
            self._door.close()
            self._door._thread.join()
        self._queue.put(item)

    def get(self) -> object:
        return self._queue.get()


def test_a_post_that_a_closing_door_never_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(EngineThread(Crank()))
    monkeypatch.setattr(door, "_posts", ClosingPosts(door))
    door.open()
    told: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def ask() -> None:
        try:
            door.ask(lambda crank: None)
        except EngineStoppedError as error:
            told.put(error)

    Thread(target=ask, daemon=True).start()  # a caller that waits for ever must not hold up the tests
    assert isinstance(told.get(timeout=PATIENCE), EngineStoppedError)


def test_no_interrupt_in_the_caller_ever_stops_the_engine() -> None:
    """Conditions and futures in the caller's thread hang within a few hundred of these."""
    process = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=120, check=False)
    assert (process.stdout, process.stderr) == ("400 alive\n", "")
