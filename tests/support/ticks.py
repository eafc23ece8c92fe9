"""One round of an event loop, without waiting for time."""

import asyncio


async def tick() -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(done.set_result, None)
    await done
