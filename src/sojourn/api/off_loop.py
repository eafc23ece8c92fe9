"""What takes long is computed on another thread, so that the loop serves others meanwhile. Knows no work of anybody's."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LONG = 4000  # characters or tokens to be read
SCORED = 10  # a token with its log-probabilities takes as long to be told as that many to be read


async def off_loop(work: Callable[[], T], size: int) -> T:
    """Its result. What is short is not worth a change of threads."""
    return await asyncio.to_thread(work) if size > LONG else work()
