"""One turn at a time, in order: lanes without a server."""

import asyncio

import pytest
from tests.support.ticks import tick

from sojourn.api.errors import LimitError
from sojourn.api.lanes import Lanes
from sojourn.core.errors import ConflictError


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await tick()


def test_first_come_first_served_and_nobody_is_left_behind() -> None:
    async def story() -> None:
        lanes, order = Lanes(8), list[int]()
        gates = [asyncio.Event() for _ in range(4)]

        async def one(number: int) -> None:
            async with lanes.hold("s", wait=True):
                order.append(number)
                await gates[number].wait()

        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(one(number)))
            await settle()
        assert order == [0]
        tasks[2].cancel()
        await settle()
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 1, 3]
        assert not lanes.is_taken("s")

    asyncio.run(story())


def test_a_lane_handed_to_one_who_leaves_goes_to_the_next() -> None:
    async def story() -> None:
        lanes, order = Lanes(8), list[str]()

        async def one(name: str) -> None:
            async with lanes.hold("s", wait=True):
                order.append(name)

        async with lanes.hold("s", wait=False):
            leaving, staying = asyncio.create_task(one("leaving")), asyncio.create_task(one("staying"))
            await settle()
        leaving.cancel()  # the lane is its own already, and it has not run since
        await asyncio.gather(leaving, staying, return_exceptions=True)
        assert order == ["staying"]
        assert not lanes.is_taken("s")

    asyncio.run(story())


def test_who_does_not_wait_is_refused_and_the_line_is_bounded() -> None:
    async def story() -> None:
        lanes = Lanes(1)
        async with lanes.hold("s", wait=True):
            with pytest.raises(ConflictError, match="running"):
                async with lanes.hold("s", wait=False):
                    raise AssertionError
            async with lanes.hold("t", wait=False):
                pass

            async def one() -> None:
                async with lanes.hold("s", wait=True):
                    pass

            waiting = asyncio.create_task(one())
            await settle()
            with pytest.raises(LimitError):
                await one()
        await waiting
        assert not lanes.is_taken("s")

    asyncio.run(story())
