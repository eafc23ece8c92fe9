"""Messages to the engine's thread: put by anyone, taken by one. Closes once; nothing put is ever forgotten."""

from collections import deque
from threading import Condition
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Inbox(Generic[Message]):
    def __init__(self) -> None:
        self._changed = Condition()
        self._messages: deque[Message] = deque()
        self._is_closed = False

    def put(self, message: Message) -> bool:
        """False, and nothing kept, once the inbox is closed."""
        with self._changed:
            if self._is_closed:
                return False
            self._messages.append(message)
            self._changed.notify()
            return True

    def take(self) -> list[Message]:
        """All that has arrived, in order; does not wait."""
        if not self._messages:
            return []
        with self._changed:
            return self._drain()

    def wait(self, timeout: float | None) -> list[Message]:
        """As `take`, but blocks until something has arrived, the inbox closes or `timeout` seconds have passed."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._is_closed, timeout)
            return self._drain()

    def close(self) -> list[Message]:
        """No message is accepted from here on. Returns those nobody has taken. May be called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            return self._drain()

    def _drain(self) -> list[Message]:
        messages = list(self._messages)
        self._messages.clear()
        return messages
