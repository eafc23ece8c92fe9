"""The front's end of the wire: questions are answered or refused, requests become feeds. One asyncio loop, one engine.

        connect ─▶ greet ─▶ welcome ─▶ up ── disconnect: everything open fails with EngineDownError ─▶ connect ...

Always reads, so the engine never waits for a slow reader: what a reader has not taken is merged in its feed, which
holds at most one answer. Knows no HTTP and no text.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from sojourn.api import wire
from sojourn.api.loop_socket import LoopSocket, first_failure
from sojourn.api.wire_base import Body
from sojourn.core.clock import Clock
from sojourn.core.errors import ClientError, ConflictError, NotFoundError, SojournError
from sojourn.core.step import Sample

R = TypeVar("R", bound=Body)
logger = logging.getLogger("sojourn.front")


class EngineDownError(SojournError):
    """The engine is starting, or stopped while it was asked. What it was doing is lost; ask again."""


class OverloadedError(SojournError):
    """The engine has no room now for what was asked."""


class StoreDownError(SojournError):
    """What was asked could not be made durable, and is undone."""


class Feed:
    """What one request has brought since it was last read."""

    def __init__(self, call: int) -> None:
        self.call = call
        self.end: wire.Ended | None = None
        self.cached_tokens = 0
        self.known: list[Sample] = []  # tokens of the prompt; all of them once there is an id
        self._ids: list[int] = []
        self._samples: list[Sample] = []
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def put(self, event: wire.Tokens | wire.Ended | Exception) -> None:
        if isinstance(event, wire.Tokens):
            self._ids += event.ids
            self._samples += event.samples or ()
            self.known += event.known
            self.cached_tokens = event.cached_tokens
        elif isinstance(event, wire.Ended):
            self.end = event
            if event.is_unstored:
                self._error = StoreDownError(event.message)
        else:
            self._error = event
        self._changed.set()

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    async def take(self) -> tuple[list[int], list[Sample]] | None:
        """Wait for tokens and take all there are; None when the request has ended and nothing is left."""
        while True:
            if self._ids:
                ids, samples = self._ids, self._samples
                self._ids, self._samples = [], []
                return ids, samples
            if self._error is not None:
                raise self._error
            if self.end is not None:
                return None
            self._changed.clear()
            await self._changed.wait()


class EngineLink:
    """`run` is its one task; everything else is called on that loop."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._calls = itertools.count(1)
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._feeds: dict[int, Feed] = {}
        self._socket: LoopSocket | None = None
        self.welcome: wire.Welcome | None = None
        self.num_engines = 0  # different ones so far
        self._engine_id = ""  # of the last one
        self.heartbeat: wire.Heartbeat | None = None
        self.heard_at = clock()  # of the last heartbeat, or of the last change of the connection
        self.progress_at = clock()  # when steps last advanced, or there was nothing to do
        self.up = asyncio.Event()
        self.on_welcome: Callable[[wire.Welcome], None] = lambda welcome: None
        self.on_session_ended: Callable[[wire.SessionEnded], None] = lambda ended: None

    @property
    def is_up(self) -> bool:
        return self.welcome is not None

    async def run(self) -> None:
        """Connect, and stay connected to whichever engine is there, until cancelled."""
        context = zmq.Context(io_threads=1)
        link = context.socket(zmq.DEALER)
        link.setsockopt(zmq.LINGER, 0)
        link.setsockopt(zmq.IMMEDIATE, 1)
        link.setsockopt(zmq.SNDHWM, 0)
        link.setsockopt(zmq.RCVHWM, 0)
        link.setsockopt(zmq.RECONNECT_IVL, 50)
        link.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        monitor = link.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        link.connect(self._address)
        connection = self._socket = LoopSocket(link, self._receive)
        watcher = LoopSocket(monitor, self._watch)
        try:
            await first_failure(connection, watcher)
        finally:
            self.give_up("the server is stopping")
            self._socket = None
            link.disable_monitor()
            watcher.close()
            connection.close()
            context.term()

    # -- asking

    async def ask(self, command: wire.Command, kind: type[R]) -> R:
        """The engine's answer. Raises the ClientError it refused with, or EngineDownError."""
        call = next(self._calls)
        return wire.decode_body(await self._call(call, command), kind)

    async def start(self, command: wire.Start) -> tuple[wire.Started, Feed]:
        """Start a request. A caller that is cancelled meanwhile leaves nothing running."""
        call = next(self._calls)
        feed = self._feeds[call] = Feed(call)
        try:
            started = wire.decode_body(await self._call(call, command), wire.Started)
        except BaseException as error:
            self._feeds.pop(call, None)
            if not isinstance(error, SojournError):
                self.end(call, undo=True)
            raise
        return started, feed

    def end(self, call: int, *, undo: bool) -> None:
        """End a request, without waiting: undone, or what was said stands. Its `Ended` follows, if the feed is still read."""
        if self.is_up:
            self._post(next(self._calls), wire.End(call, undo))

    def forget(self, feed: Feed) -> None:
        """Nobody reads this feed any more; a request that still runs is undone."""
        if self._feeds.pop(feed.call, None) is not None and feed.end is None:
            self.end(feed.call, undo=True)

    async def _call(self, call: int, command: wire.Command) -> bytes:
        if not self.is_up:
            raise EngineDownError("the engine is not running yet; it is being started")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[call] = answer
        try:
            self._post(call, command)
            return await answer
        finally:
            del self._answers[call]

    def _post(self, call: int, command: wire.Command) -> None:
        welcome, link = self.welcome, self._socket
        if link is None:
            raise EngineDownError("the server is stopping")
        frame = wire.encoder.encode(wire.Ask("" if welcome is None else welcome.engine, call, command))
        link.send(frame)  # to an engine that is gone: its caller is told by the disconnection

    # -- hearing

    def _watch(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._post(next(self._calls), wire.Greet())
        else:
            self.give_up("the engine stopped; it is being started again")

    def _receive(self, frames: list[bytes]) -> None:
        for event in wire.events_decoder.decode(frames[0]):
            self._hear(event)

    def _hear(self, event: wire.Event) -> None:
        match event:
            case wire.Tokens():
                if (feed := self._feeds.get(event.call)) is not None:
                    feed.put(event)
            case wire.Ended():
                if (feed := self._feeds.pop(event.call, None)) is not None:
                    feed.put(event)
            case wire.Answer():
                if (answer := self._answers.get(event.call)) is not None and not answer.done():
                    answer.set_result(event.body)
            case wire.Refusal():
                if (answer := self._answers.get(event.call)) is not None and not answer.done():
                    answer.set_exception(_refusal(event))
            case wire.Heartbeat():
                self._beat(event)
            case wire.SessionEnded():
                self.on_session_ended(event)
            case wire.Welcome():
                self.heard_at = self.progress_at = self._clock()
                self.num_engines += event.engine != self._engine_id
                self._engine_id = event.engine
                self.on_welcome(event)
                self.welcome = event
                self.up.set()

    def _beat(self, beat: wire.Heartbeat) -> None:
        now = self._clock()
        if self.heartbeat is None or beat.steps != self.heartbeat.steps or not beat.is_busy:
            self.progress_at = now
        self.heartbeat, self.heard_at = beat, now

    def give_up(self, why: str) -> None:
        """The engine is gone, or no longer waited for: whatever was asked of it fails with an EngineDownError."""
        self.welcome = self.heartbeat = None
        self.up.clear()
        self.heard_at = self._clock()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineDownError(why))
        for feed in self._feeds.values():
            feed.put(EngineDownError(why))
        self._feeds.clear()


def _refusal(event: wire.Refusal) -> SojournError:
    kinds: dict[int, type[ClientError]] = {404: NotFoundError, 409: ConflictError}
    if event.code == wire.STORE_DOWN:
        return StoreDownError(event.message)
    if event.status >= 500:
        return OverloadedError(event.message)
    refusal = kinds.get(event.status, ClientError)(event.message, param=event.param, code=event.code)
    refusal.status = event.status
    refusal.retry_after_s = event.retry_after_s
    return refusal
