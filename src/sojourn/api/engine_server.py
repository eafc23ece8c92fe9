"""The engine's end of the wire: a socket beside the engine's thread. Neither waits for the other.

    front ─▶ ROUTER ─▶ decode ─▶ EngineThread.call / stream ─▶ desk        (this thread)      (engine's thread)
          ◀─ ROUTER ◀─ encode ◀─ outbox ◀── sinks, futures ◀── desk

Owns the socket and the outbox. A front that goes away has its requests aborted. Knows no text and no HTTP.
"""

import logging
import socket
from collections import deque
from concurrent.futures import Future
from functools import partial

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from sojourn.api import wire
from sojourn.api.desk import EngineDesk
from sojourn.core.clock import Clock
from sojourn.core.errors import ClientError, SojournError
from sojourn.engine.thread import EngineStoppedError, EngineThread
from sojourn.sessions.service import SessionService
from sojourn.sessions.store import StoreError

HEARTBEAT_S = 0.5
logger = logging.getLogger("sojourn.engine")


class Outbox:
    """Messages for the front, put by the engine's thread, taken by the socket's when that is woken by `ring`.

    `put` does not ring: a step's messages are taken at once, and two threads do not fight for the interpreter over each.
    """

    def __init__(self) -> None:
        self._messages: deque[wire.Event] = deque()
        self._waker, self.bell = socket.socketpair()
        self._waker.setblocking(False)
        self.bell.setblocking(False)

    def put(self, message: wire.Event) -> None:
        self._messages.append(message)

    def ring(self) -> None:
        """Wake the taker, with a byte through a pair of sockets."""
        try:
            self._waker.send(b"\0")
        except BlockingIOError:  # it is ringing already
            return

    def close(self) -> None:
        """Once neither thread runs any more."""
        self._waker.close()
        self.bell.close()

    def take(self) -> list[wire.Event]:
        try:
            while self.bell.recv(4096):
                pass
        except BlockingIOError:
            pass
        taken: list[wire.Event] = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken


class EngineServer:
    """Serves one front at a time, until the engine stops or is told to."""

    def __init__(
        self,
        address: str,
        thread: EngineThread[SessionService],
        desk: EngineDesk,
        outbox: Outbox,
        *,
        engine_id: str,
        card: wire.ModelCard,
        clock: Clock,
    ) -> None:
        self._address = address
        self._thread = thread
        self._desk = desk
        self._outbox = outbox
        self._engine_id = engine_id
        self._card = card
        self._clock = clock
        self._front: bytes | None = None
        self._beat: Future[wire.Heartbeat] | None = None
        self._next_beat_at = clock()
        self._is_stopping = False

    def stop(self) -> None:
        """From a signal handler or another thread: leave `run` soon."""
        self._is_stopping = True
        self._outbox.ring()

    def run(self) -> None:
        """Until stopped. Returns when the engine's thread has ended, too: its `stopped` then says why."""
        context = zmq.Context(io_threads=1)
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 200)
        router.setsockopt(zmq.SNDHWM, 0)  # a front always reads: what it cannot give on it keeps, merged
        router.setsockopt(zmq.RCVHWM, 0)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        monitor = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        router.bind(self._address)
        poller = zmq.Poller()
        for source in (router, monitor, self._outbox.bell):
            poller.register(source, zmq.POLLIN)
        try:
            while not self._is_stopping and self._thread.stopped is None:
                wait_ms = max(0, int((self._next_beat_at - self._clock()) * 1000) + 1)
                ready = {source for source, _ in poller.poll(wait_ms)}
                if monitor in ready:
                    parse_monitor_message(monitor.recv_multipart())
                    self._lose_front()
                if router in ready:
                    self._receive(router)
                self._send(router, self._outbox.take())
                self._keep_beating()
        finally:
            self._send(router, self._outbox.take())
            router.disable_monitor()
            monitor.close(linger=0)
            router.close()
            context.term()

    # -- from the front

    def _receive(self, router: zmq.Socket[bytes]) -> None:
        while True:
            try:
                front, frame = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                ask = wire.ask_decoder.decode(frame)
            except msgspec.MsgspecError:
                logger.exception("a message that is none from the front")
                continue
            self._obey(front, ask, router)

    def _obey(self, front: bytes, ask: wire.Ask, router: zmq.Socket[bytes]) -> None:
        command, call = ask.command, ask.call
        if isinstance(command, wire.Greet):
            if self._front is not None and self._front != front:
                self._lose_front()
            self._front = front
            self._send(router, [wire.Welcome(self._engine_id, self._card)])
            return
        if front != self._front or ask.engine != self._engine_id:
            return  # a message to an engine that is no more, or of a front that is
        if isinstance(command, wire.Start):
            start = command
            started = self._thread.stream(lambda _: self._desk.start(call, start), partial(self._desk.take, call))
            started.add_done_callback(partial(self._refuse, call))
        else:
            done = self._thread.call(lambda _: self._desk.answer(call, self._desk.obey(call, command)))
            done.add_done_callback(partial(self._refuse, call))

    def _refuse(self, call: int, future: "Future[object]") -> None:
        """Refusals go to the front; an engine that stopped tells by its exit."""
        error = future.exception()
        if error is None or isinstance(error, EngineStoppedError):
            return
        if isinstance(error, ClientError):
            refusal = wire.Refusal(call, error.status, str(error), error.param, error.code, error.retry_after_s)
            self._outbox.put(refusal)
        elif isinstance(error, StoreError):
            logger.error("refused, since it could not be kept: %s", error)
            self._outbox.put(wire.Refusal(call, 503, str(error), None, wire.STORE_DOWN))
        elif isinstance(error, SojournError):
            self._outbox.put(wire.Refusal(call, 503, str(error), None, "capacity"))

    def _lose_front(self) -> None:
        self._front = None
        self._thread.call(lambda _: self._desk.abort_all())

    # -- to the front

    def _send(self, router: zmq.Socket[bytes], messages: list[wire.Event]) -> None:
        if messages and self._front is not None:
            router.send_multipart([self._front, wire.encoder.encode(messages)])

    def _keep_beating(self) -> None:
        """Ask the engine's thread how it is, one question at a time: no answer, no beat."""
        now = self._clock()
        if now < self._next_beat_at:
            return
        self._next_beat_at = now + HEARTBEAT_S
        if self._beat is None or self._beat.done():
            self._beat = self._thread.call(lambda _: self._desk.heartbeat())
            self._beat.add_done_callback(self._pass_on_beat)

    def _pass_on_beat(self, beat: "Future[wire.Heartbeat]") -> None:
        if beat.exception() is None:
            self._outbox.put(beat.result())
