"""The front's process: uvicorn around the HTTP application, on a socket that the supervisor opened.

SIGTERM drains: no new work, what runs is waited for, then the exit. A second one ends at once. The first line of stdin is
the start, as JSON; stdin then stays open for as long as the supervisor lives.
"""

import asyncio
import contextlib
import gc
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from sojourn.api.account import Tracer
from sojourn.api.app import make_app
from sojourn.api.auth import Keys, parse_keys
from sojourn.api.front import Front
from sojourn.api.settings import FrontWorld
from sojourn.app.config import traces_wanted
from sojourn.app.ending import KILL_AFTER_S
from sojourn.app.follow import follow_parent
from sojourn.app.logs import configure
from sojourn.app.processes import EXIT_BROKEN_LAW, EXIT_OPTIONS, FrontStart
from sojourn.app.ready import tell_ready
from sojourn.core.errors import ClientError

# Longer than clients keep theirs: who closes first must not be the one who cannot know of a request under way. httpx, and so
# OpenAI's client, gives idle connections up after five seconds, which is uvicorn's own default; proxies after sixty.
CONNECTION_IDLE_S = 75


class Server(uvicorn.Server):
    """Signals are ours to answer: they drain first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_front(start: FrontStart) -> int:
    opened_at = time.localtime()
    world = FrontWorld(
        clock=time.monotonic,
        now=time.time,
        date=lambda form: time.strftime(form, opened_at),
        new_id=lambda: secrets.token_hex(16),
        seed=lambda: secrets.randbits(63),
    )
    front, app = make_app(start.settings, world, read_keys(start.api_key_file), make_tracer(world))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nobody here asks where a request came from
        server_header=False,
        date_header=False,
        lifespan="on",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=CONNECTION_IDLE_S,
    )
    server = Server(config)
    listener = socket.socket(fileno=start.fd)
    loop = asyncio.get_running_loop()
    draining: list[asyncio.Task[None]] = []
    gc.freeze()  # the application's own objects stay: a full collection in mid-stream need not look at them

    def on_signal() -> None:
        if draining:
            server.force_exit = server.should_exit = True
        else:
            draining.append(loop.create_task(_drain(front, server)))

    def on_fault() -> None:
        server.force_exit = server.should_exit = True

    front.on_fault = on_fault
    loop.add_signal_handler(signal.SIGTERM, on_signal)
    tell_ready(start.ready_fd)
    await server.serve(sockets=[listener])
    if front.fault is None:
        return 0
    logging.getLogger("sojourn.front").critical("the front has stopped", exc_info=front.fault)
    return EXIT_BROKEN_LAW


async def _drain(front: Front, server: Server) -> None:
    logging.getLogger("sojourn.front").info("draining: %d requests are running", front.num_live)
    await front.drain()
    server.should_exit = True


def make_tracer(world: FrontWorld) -> Tracer | None:
    """A tracer if the environment asks for one and the extra is installed. Loaded by name: it is not a dependency."""
    if not traces_wanted():
        return None
    try:
        tracing = import_module("sojourn.api.tracing")
    except ImportError as error:
        raise ClientError(f"tracing is configured but cannot be loaded ({error}): install sojourn[otel]") from error
    tracer: Tracer = tracing.make_tracer(world.clock, world.now)
    return tracer


def read_keys(path: str | None) -> Keys:
    if path is None:
        return Keys({})
    try:
        return parse_keys(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ClientError(f"the key file cannot be read: {error}", param="api_key_file") from error


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=FrontStart)
    configure(start.log_format)
    follow_parent(start.settings.shutdown_timeout_s + KILL_AFTER_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve_front(start))
    except ClientError as error:
        sys.stderr.write(f"sojourn: {error}\n")
        return EXIT_OPTIONS


if __name__ == "__main__":
    sys.exit(main())
