"""A zmq socket on an asyncio loop, without a future per message: each one is handed to a function as it comes.

`zmq.asyncio` makes two futures and asks for the socket's state several times per message, which cost more than all the rest
of a token on its way to the client. Knows frames; knows nothing of what they say.

zmq's descriptor is edge-triggered: it tells once that something changed. So all there is is read each time, and again after
every send, which may have used the edge up.
"""

import asyncio
from collections.abc import Callable

import zmq

MESSAGES_AT_ONCE = 64  # then the loop's other tasks have their turn


class LoopSocket:
    """Owns a connected or bound socket until `close`. `hear` is called on the loop; what it raises ends `failed`."""

    def __init__(self, socket: "zmq.Socket[bytes]", hear: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._will_read = False
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(int(socket.FD), self._read)
        self._read_soon()

    def send(self, frame: bytes) -> bool:
        """False: nobody is connected to take it."""
        try:
            return self._sent(frame) or self._sent_to_whoever_came(frame)
        finally:
            self._read_soon()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(int(self._socket.FD))
            self._socket.close(linger=0)

    def _sent(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _sent_to_whoever_came(self, frame: bytes) -> bool:
        """`send` looks for new connections once in a millisecond only; asking for the state looks in any case."""
        self._socket.get(zmq.EVENTS)
        return self._sent(frame)

    def _read_soon(self) -> None:
        if not self._will_read:
            self._will_read = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._will_read = False
        try:
            for _ in range(MESSAGES_AT_ONCE):
                if self._is_closed or not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                    return
                self._hear(self._socket.recv_multipart(zmq.NOBLOCK))
        except Exception as error:  # noqa: BLE001 - whoever runs the socket is told, and ends with it
            if not self.failed.done():
                self.failed.set_exception(error)
            return
        self._read_soon()


async def first_failure(*sockets: LoopSocket) -> None:
    """Waits until what one of them heard went wrong, and raises that."""
    done, _ = await asyncio.wait([socket.failed for socket in sockets], return_when=asyncio.FIRST_COMPLETED)
    for failed in done:
        failed.result()
