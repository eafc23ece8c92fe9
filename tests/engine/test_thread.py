"""The engine's thread: commands are answered, events reach their sinks, and a broken law reaches everyone."""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Thread, current_thread

import pytest
from tests.support.fake_backend import expected_tokens
from tests.support.world import World, WorldConfig

from sojourn.backends.protocol import Batch, BatchOutput
from sojourn.core.errors import ClientError, CorruptionError
from sojourn.core.ids import RequestId
from sojourn.engine.events import Event, FinishedEvent, Notice, TokensEvent
from sojourn.engine.loop import EngineLoop
from sojourn.engine.thread import EngineStoppedError, EngineThread

PATIENCE = 30.0  # seconds; a guard against hanging, never waited for
Told = queue.SimpleQueue[Event | EngineStoppedError]


@pytest.fixture(params=[False, True], ids=["steps here", "steps overlap"])
def world(request: pytest.FixtureRequest) -> World:
    if not request.param:
        return World(WorldConfig())
    return World(WorldConfig(drafts_max=2), depth=1, executor=ThreadPoolExecutor(1, thread_name_prefix="steps"))


@pytest.fixture
def thread(world: World) -> Iterator[EngineThread[EngineLoop]]:
    thread = EngineThread(world.loop)
    thread.start()
    yield thread
    thread.stop()


def start(
    thread: EngineThread[EngineLoop], world: World, prompt: list[int], max_new_tokens: int = 5
) -> tuple[Future[RequestId], Told]:
    told: Told = queue.SimpleQueue()

    def command(loop: EngineLoop) -> RequestId:
        request = world.request(prompt, max_new_tokens)
        loop.submit(request)
        return request.request_id

    return thread.stream(command, told.put), told


def read(told: Told) -> tuple[list[int], FinishedEvent | EngineStoppedError]:
    tokens: list[int] = []
    while True:
        event = told.get(timeout=PATIENCE)
        if not isinstance(event, TokensEvent):
            return tokens, event
        tokens += [sample.token for sample in event.samples]


def test_a_stream_gets_every_event_of_its_request(world: World, thread: EngineThread[EngineLoop]) -> None:
    streams = [start(thread, world, [salt, 2, 3]) for salt in range(5)]
    for salt, (answer, told) in enumerate(streams):
        tokens, end = read(told)
        assert tokens == expected_tokens([salt, 2, 3], 5)
        assert isinstance(end, FinishedEvent)
        assert end.request_id == answer.result(PATIENCE)
        assert told.empty()


def test_commands_run_on_the_engine_s_thread(thread: EngineThread[EngineLoop]) -> None:
    assert thread.call(lambda loop: current_thread().name).result(PATIENCE) == "engine"


def test_a_refusal_is_the_caller_s_alone(world: World, thread: EngineThread[EngineLoop]) -> None:
    refused, told = start(thread, world, [])
    with pytest.raises(ClientError):
        refused.result(PATIENCE)
    assert told.empty()
    _, told = start(thread, world, [1])
    assert read(told)[0] == expected_tokens([1], 5)
    assert thread.stopped is None


def test_a_cancelled_command_is_not_run(thread: EngineThread[EngineLoop]) -> None:
    gate, ran = Flag(), Flag()
    blocker = thread.call(lambda loop: gate.wait(PATIENCE))
    unwanted = thread.call(lambda loop: ran.set())
    assert unwanted.cancel()
    gate.set()
    assert blocker.result(PATIENCE)
    thread.call(lambda loop: None).result(PATIENCE)
    assert not ran.is_set()


def test_a_broken_law_reaches_every_stream_every_waiting_call_and_every_later_one(
    world: World, thread: EngineThread[EngineLoop]
) -> None:
    gate = Flag()
    _, told = start(thread, world, [1, 2, 3], 400)
    blocker = thread.call(lambda loop: gate.wait(PATIENCE))

    def corrupt(loop: EngineLoop) -> None:
        raise CorruptionError("page 7 has two owners")

    broken = thread.call(corrupt)
    waiting = thread.call(lambda loop: 1)
    gate.set()
    assert blocker.result(PATIENCE)
    for future in (broken, waiting):
        with pytest.raises(EngineStoppedError, match="page 7 has two owners"):
            future.result(PATIENCE)
    _, end = read(told)
    assert isinstance(end, EngineStoppedError)
    assert "page 7 has two owners" in end.report
    assert "pool FULL: 65 pages" in end.report
    assert "Request(" in end.report, "it says who was alive"
    with pytest.raises(EngineStoppedError, match="page 7 has two owners"):
        thread.call(lambda loop: 1).result(PATIENCE)
    assert thread.stopped is not None


def test_a_failing_step_stops_the_engine_with_its_traceback(world: World, thread: EngineThread[EngineLoop]) -> None:
    world.backend.fail_with = MemoryError("no room for activations")
    _, told = start(thread, world, [1, 2, 3])
    _, end = read(told)
    assert isinstance(end, EngineStoppedError)
    assert "no room for activations" in str(end)
    assert "Traceback" in end.report


def test_a_stop_tells_open_streams_and_may_be_repeated(world: World, thread: EngineThread[EngineLoop]) -> None:
    answer, told = start(thread, world, [1, 2, 3], 400)
    answer.result(PATIENCE)
    thread.stop()
    _, end = read(told)
    assert isinstance(end, EngineStoppedError)
    thread.stop()
    with pytest.raises(EngineStoppedError, match="closed"):
        thread.call(lambda loop: 1).result(PATIENCE)


def test_a_thread_that_never_started_answers_when_it_is_stopped(world: World) -> None:
    thread = EngineThread(world.loop)
    answer = thread.call(lambda loop: 1)
    thread.stop()
    with pytest.raises(EngineStoppedError):
        answer.result(PATIENCE)


@dataclass
class Held:
    """A back end whose next step waits, and then may fail."""

    world: World
    begun: Flag = field(default_factory=Flag)
    opened: Flag = field(default_factory=Flag)
    is_inside: bool = False
    fault: Exception | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = self.world.backend.step

        def step(batch: Batch) -> BatchOutput:
            self.is_inside = True
            self.begun.set()
            assert self.opened.wait(PATIENCE)
            if self.fault is not None:
                raise self.fault
            output = plain(batch)
            self.is_inside = False
            return output

        monkeypatch.setattr(self.world.backend, "step", step)


@pytest.fixture
def held(world: World, monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held(world)
    held.install(monkeypatch)
    return held


def test_a_stop_waits_for_the_step_that_runs(held: Held, thread: EngineThread[EngineLoop]) -> None:
    _, told = start(thread, held.world, [1, 2, 3], 400)
    assert held.begun.wait(PATIENCE)
    stopping = Thread(target=thread.stop)
    stopping.start()
    while thread.stopped is None:
        stopping.join(0.01)
    assert stopping.is_alive(), "a step runs"
    held.opened.set()
    stopping.join(PATIENCE)
    assert not held.is_inside
    assert isinstance(read(told)[1], EngineStoppedError)
    assert thread.fault is None


def test_a_step_that_fails_while_the_engine_stops_is_its_fault(held: Held, thread: EngineThread[EngineLoop]) -> None:
    start(thread, held.world, [1, 2, 3], 400)
    assert held.begun.wait(PATIENCE)
    held.fault = CorruptionError("page 7")
    stopping = Thread(target=thread.stop)
    stopping.start()
    while thread.stopped is None:
        stopping.join(0.01)
    held.opened.set()
    stopping.join(PATIENCE)
    assert thread.fault is not None
    assert "page 7" in str(thread.fault)


class Alarm:
    """A crank with nothing to do but one notice, due at once."""

    def __init__(self) -> None:
        self.is_due = True

    @property
    def has_work(self) -> bool:
        return False

    def wake_in(self) -> float | None:
        return 0.0 if self.is_due else None

    def shut_down(self) -> None:
        """Nothing runs."""

    def report(self, error: CorruptionError) -> str:
        raise ValueError("the book is unreadable")

    def step(self) -> list[Event | Notice]:
        notices: list[Event | Notice] = [Notice()] if self.is_due else []
        self.is_due = False
        return notices


def test_what_is_due_by_itself_wakes_the_thread_and_reaches_the_listener() -> None:
    heard: queue.SimpleQueue[Notice] = queue.SimpleQueue()
    thread = EngineThread(Alarm(), listener=heard.put)
    thread.start()
    assert heard.get(timeout=PATIENCE) == Notice()
    thread.stop()


def test_a_report_that_fails_keeps_nobody_waiting() -> None:
    thread = EngineThread(Alarm())
    thread.start()

    def corrupt(crank: Alarm) -> None:
        raise CorruptionError("page 7 has two owners")

    with pytest.raises(EngineStoppedError, match="page 7"):
        thread.call(corrupt).result(PATIENCE)
    thread.stop()
    assert thread.stopped is not None
    assert "the book is unreadable" in thread.stopped.report


class LastStep:
    """A crank that is told to stop in the middle of a step, which then breaks a law."""

    has_work = True

    def __init__(self) -> None:
        self.stop: Callable[[], None] = lambda: None

    def step(self) -> list[Event]:
        self.stop()
        raise CorruptionError("page 7")

    def wake_in(self) -> float | None:
        return None

    def shut_down(self) -> None:
        """Nothing runs."""

    def report(self, error: CorruptionError) -> str:
        return "the ledger"


def test_a_law_broken_in_the_last_step_is_not_lost() -> None:
    crank = LastStep()
    thread = EngineThread(crank)
    crank.stop = thread.stop
    thread.start()
    thread.stop()
    fault = thread.fault
    assert fault is not None
    assert thread.stopped is not None
    assert thread.stopped.report == fault.report
    assert "page 7" in str(fault)
    assert "the ledger" in fault.report


def test_everyone_is_given_an_error_of_his_own(thread: EngineThread[EngineLoop]) -> None:
    """One error raised by many would hold the frames of them all."""
    gate = Flag()
    thread.call(lambda loop: gate.wait(PATIENCE))

    def corrupt(loop: EngineLoop) -> None:
        raise CorruptionError("page 7")

    early = [thread.call(corrupt).exception, *(thread.call(lambda loop: 1).exception for _ in range(3))]
    gate.set()
    errors: list[BaseException | None] = [error(PATIENCE) for error in early]
    errors += [thread.call(lambda loop: 1).exception(PATIENCE) for _ in range(3)]
    errors += [thread.stopped, thread.stopped]
    assert all(isinstance(error, EngineStoppedError) and "page 7" in error.report for error in errors)
    assert len({id(error) for error in errors}) == len(errors)


def test_a_thread_that_was_told_to_stop_has_no_fault(thread: EngineThread[EngineLoop]) -> None:
    thread.stop()
    assert thread.fault is None
    assert isinstance(thread.stopped, EngineStoppedError)


def test_a_sink_that_fails_on_its_last_event_is_told_of_the_fault(
    world: World, thread: EngineThread[EngineLoop]
) -> None:
    told: Told = queue.SimpleQueue()

    def sink(event: Event | EngineStoppedError) -> None:
        if isinstance(event, FinishedEvent):
            raise CorruptionError("the end does not fit what was sent")
        told.put(event)

    def command(loop: EngineLoop) -> RequestId:
        request = world.request([1, 2], 2)
        loop.submit(request)
        return request.request_id

    thread.stream(command, sink).result(PATIENCE)
    assert isinstance(read(told)[1], EngineStoppedError)


def test_whoever_passes_events_on_is_woken_once_for_all_that_came_of_a_step() -> None:
    world = World(WorldConfig())
    told: list[object] = []
    rounds: list[int] = []
    ended = Flag()

    def pass_on() -> None:
        rounds.append(len(told))
        told.clear()

    def sink(event: Event | EngineStoppedError) -> None:
        told.append(event)
        if isinstance(event, FinishedEvent):
            ended.set()

    def submit(loop: EngineLoop) -> RequestId:
        request = world.request([1, 2, 3], 5)
        loop.submit(request)
        return request.request_id

    thread = EngineThread(world.loop, told=pass_on)
    for _ in range(3):
        thread.stream(submit, sink)
    thread.start()
    assert ended.wait(PATIENCE)
    thread.stop()
    assert not told, "nothing is left behind"
    assert rounds[0] == 0, "the answers of the three commands, in one round"
    assert rounds[1:] == [3, 3, 3, 3, 6], "five tokens each, and with the last the end"
