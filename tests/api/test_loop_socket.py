"""A zmq socket on a loop: every message is heard, once and in order, whatever is sent meanwhile."""

import asyncio
from pathlib import Path

import pytest
import zmq
from tests.support.ticks import tick

from sojourn.api.loop_socket import MESSAGES_AT_ONCE, LoopSocket, first_failure

GUARD_S = 60.0
MANY = 5 * MESSAGES_AT_ONCE + 3  # more than one reading takes


async def deliver(socket: LoopSocket, frame: bytes) -> None:
    """The other end may not be there yet."""
    while not socket.send(frame):
        await tick()


async def both_ends(path: Path, count: int) -> tuple[list[int], list[int]]:
    """Two ends that send each other `count` numbers at once, and what each heard."""
    context = zmq.Context(io_threads=1)
    ends = [context.socket(zmq.PAIR), context.socket(zmq.PAIR)]
    ends[0].bind(f"ipc://{path}/pair")
    ends[1].connect(f"ipc://{path}/pair")
    heard: tuple[list[int], list[int]] = ([], [])
    complete = asyncio.Event()

    def hear(number: int, frames: list[bytes]) -> None:
        heard[number].append(int(frames[0]))
        if [len(numbers) for numbers in heard] == [count, count]:
            complete.set()

    left = LoopSocket(ends[0], lambda frames: hear(0, frames))
    right = LoopSocket(ends[1], lambda frames: hear(1, frames))
    async with asyncio.timeout(GUARD_S):
        for number in range(count):
            await deliver(left, b"%d" % number)
            await deliver(right, b"%d" % number)
        await complete.wait()
    left.close()
    right.close()
    right.close()
    context.term()
    return heard


@pytest.mark.parametrize("count", [1, MANY])
def test_every_message_is_heard_once_and_in_order(tmp_path: Path, count: int) -> None:
    assert asyncio.run(both_ends(tmp_path, count)) == (list(range(count)), list(range(count)))


def test_what_hearing_raises_ends_whoever_runs_the_socket(tmp_path: Path) -> None:
    def hear(frames: list[bytes]) -> None:
        raise ValueError(frames[0].decode())

    async def run() -> None:
        context = zmq.Context(io_threads=1)
        bound, connected = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        bound.bind(f"ipc://{tmp_path}/pair")
        connected.connect(f"ipc://{tmp_path}/pair")
        quiet, broken = LoopSocket(bound, lambda frames: None), LoopSocket(connected, hear)
        try:
            async with asyncio.timeout(GUARD_S):
                await deliver(quiet, b"nonsense")
                with pytest.raises(ValueError, match="nonsense"):
                    await first_failure(quiet, broken)
        finally:
            quiet.close()
            broken.close()
            context.term()

    asyncio.run(run())


def test_nobody_to_take_it_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        context = zmq.Context(io_threads=1)
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.connect(f"ipc://{tmp_path}/nobody")
        alone = LoopSocket(socket, lambda frames: None)
        assert not alone.send(b"hello")
        alone.close()
        context.term()

    asyncio.run(run())


def test_who_has_just_come_is_sent_to() -> None:
    """Right after nobody was there: zmq itself would not look again within the same millisecond."""

    async def run() -> None:
        context = zmq.Context()
        here, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        here.bind("inproc://pair")
        socket = LoopSocket(here, lambda frames: None)
        assert not socket.send(b"too early")
        other.connect("inproc://pair")
        assert socket.send(b"hello")
        assert other.recv(zmq.NOBLOCK) == b"hello"
        socket.close()
        other.close()
        context.term()

    asyncio.run(run())
