"""How a process tells whoever started it that it is ready: a byte in a pipe, which waits there until somebody asks.

So nobody has to listen while a process starts, and what a process said outlives it.
"""

import os
from contextlib import suppress
from typing import Self


class ReadyPipe:
    """The parent's end, of all processes of a kind: they inherit `fd`."""

    def __init__(self) -> None:
        self._reader, self.fd = os.pipe()
        os.set_blocking(self._reader, False)
        self._was_told = False

    def was_told(self) -> bool:
        """Whether any of them has been ready."""
        if not self._was_told:
            with suppress(BlockingIOError):  # nothing is in it
                self._was_told = bool(os.read(self._reader, 1))
        return self._was_told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._reader)
        os.close(self.fd)


def tell_ready(fd: int | None) -> None:
    """To whoever started this process, if that wants to know and still runs."""
    if fd is not None:
        with suppress(BrokenPipeError):
            os.write(fd, b"\n")
