"""Time as an argument: whatever needs it is given a `Clock` and never reads one of its own."""

from collections.abc import Callable

Clock = Callable[[], float]  # seconds from any fixed origin, never going back
