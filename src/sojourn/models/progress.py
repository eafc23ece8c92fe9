"""How long work reports itself. The app implements it on a terminal; nothing here prints."""

from typing import Protocol


class Progress(Protocol):
    def start(self, total: int, what: str) -> None:
        """A new piece of work of `total` bytes begins; the one before, if any, is over."""
        ...

    def advance(self, amount: int) -> None: ...

    def message(self, text: str) -> None:
        """A line for the person: terms of a licence, another process being waited for."""
        ...


class SilentProgress:
    def start(self, total: int, what: str) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def message(self, text: str) -> None:
        pass
