"""Keeps a front and an engine running: a process that dies is started again, each without the other.

          ┌── front   (HTTP; owns no KV)      SIGTERM: front drains ─▶ engine stops ─▶ exit 0
    here ─┤
          └── engine  (models, sessions, KV)  dies: started again after 0.5, 1, 2 ... 30 s

One that finds its options at fault ends the server, but only where none of its kind has been ready before: what was good
once is good again, as soon as there is memory, or the file is back.

Owns the listening socket (a new front takes over its queue) and the folder of the engine's socket. Knows no HTTP and no
model. What it starts follows it: each child ends when its stdin closes.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from dataclasses import dataclass

from sojourn.app.ending import KILL_AFTER_S
from sojourn.app.processes import EXIT_OPTIONS
from sojourn.app.ready import ReadyPipe
from sojourn.core.errors import ClientError

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0  # a process that ran this long starts over at the first back-off
logger = logging.getLogger("sojourn.supervisor")


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of process: its module, the first line of its stdin, the file descriptors it inherits, and what it says in
    one of them when it is ready."""

    name: str
    module: str
    start: str
    fds: tuple[int, ...] = ()
    ready: ReadyPipe | None = None

    def has_been_ready(self) -> bool:
        return self.ready is not None and self.ready.was_told()


class Supervisor:
    def __init__(self, front: Part, engine: Part, shutdown_timeout_s: float) -> None:
        self._front = front
        self._engine = engine
        self._shutdown_timeout_s = shutdown_timeout_s
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._code = 0

    async def run(self) -> int:
        """Until a signal, or until a part cannot run at all. The exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        engine = asyncio.create_task(self._keep(self._engine))
        front = asyncio.create_task(self._keep(self._front))
        for keeper in (engine, front):  # one that fails is a fault of ours, which must not go unseen
            keeper.add_done_callback(lambda _: self._stopping.set())
        await self._stopping.wait()
        await self._end(self._front.name, front, self._shutdown_timeout_s + KILL_AFTER_S)
        await self._end(self._engine.name, engine, KILL_AFTER_S)
        return self._code

    def _on_signal(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            return
        self._code = 1
        for process in self._running.values():
            process.kill()

    async def _keep(self, part: Part) -> None:
        """Start it, and again whenever it ends, until we stop."""
        pause = BACKOFF_FIRST_S
        while not self._stopping.is_set():
            began = time.monotonic()
            code: int | None = None
            try:
                code = await self._run_once(part)
                how = f"ended with code {code}"
            except OSError as error:  # there are too many processes, or there is no memory for one
                how = f"could not be started ({error})"
            if self._stopping.is_set():
                return
            if code == EXIT_OPTIONS and not part.has_been_ready():
                self._code = EXIT_OPTIONS
                self._stopping.set()
                return
            if time.monotonic() - began > STEADY_S:
                pause = BACKOFF_FIRST_S
            logger.error("the %s %s; it is started again in %.1f s", part.name, how, pause)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                pause = min(2 * pause, BACKOFF_MAX_S)

    async def _run_once(self, part: Part) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", part.module, stdin=asyncio.subprocess.PIPE, pass_fds=part.fds
        )
        self._running[part.name] = process
        logger.info("the %s is process %d", part.name, process.pid)
        assert process.stdin is not None
        process.stdin.write(part.start.encode() + b"\n")
        if self._stopping.is_set():  # the signal came while it was being started: nobody else tells it
            process.terminate()
        code = await process.wait()
        del self._running[part.name]
        return code

    async def _end(self, name: str, keeper: "asyncio.Task[None]", patience_s: float) -> None:
        """Ask it to stop, wait, and kill it if it does not. One that is being started is told by its keeper."""
        if (process := self._running.get(name)) is not None:
            process.terminate()
        await asyncio.wait({keeper}, timeout=patience_s)
        if not keeper.done():
            logger.error("the %s did not stop in %.0f s", name, patience_s)
            self._code = self._code or 1
            if (process := self._running.get(name)) is not None:
                process.kill()
        await keeper


def listen(host: str, port: int) -> socket.socket:
    """The socket that fronts accept on. ClientError, with host and port, where there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ClientError(f"cannot listen on {host}:{port}: {error.strerror}", param="port") from error
    listener.listen(1024)
    listener.set_inheritable(True)
    return listener
