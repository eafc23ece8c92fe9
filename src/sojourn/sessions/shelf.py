"""How much room histories take, and which sessions give theirs up first. Knows names, bytes and the order of use."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from sojourn.sessions.history import TurnRecord

SESSION_BYTES = 256  # about what an empty one takes, in memory and in a store
TURN_BYTES = 64  # a turn, besides its note
TOKEN_BYTES = 4


def bytes_of(turns: Iterable[TurnRecord]) -> int:
    """Of one session."""
    return SESSION_BYTES + sum(bytes_of_turn(turn) for turn in turns)


def bytes_of_turn(turn: TurnRecord) -> int:
    return TURN_BYTES + len(turn.note) + TOKEN_BYTES * (turn.end - turn.start)


class Shelf:
    """Bytes by session, the one that was used last at the end. `bytes_max` None: there is room for all."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._bytes: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    @property
    def num_bytes(self) -> int:
        return self._total

    @property
    def bytes_max(self) -> int | None:
        return self._bytes_max

    def __len__(self) -> int:
        return len(self._bytes)

    def __contains__(self, name: str) -> bool:
        return name in self._bytes

    def put(self, name: str, num_bytes: int) -> None:
        """The session takes this much now, and was used last."""
        self._total += num_bytes - self._bytes.pop(name, 0)
        self._bytes[name] = num_bytes

    def add(self, name: str, num_bytes: int) -> None:
        """It takes this much more, and was used last."""
        self.put(name, self._bytes[name] + num_bytes)

    def drop(self, name: str) -> None:
        self._total -= self._bytes.pop(name)

    def surplus(self, may_go: Callable[[str], bool]) -> list[str]:
        """Those that must go for the rest to have room, least recently used first. The last one used stays."""
        if self._bytes_max is None or self._total <= self._bytes_max:
            return []
        total, going = self._total, []
        for name, num_bytes in list(self._bytes.items())[:-1]:
            if total <= self._bytes_max:
                break
            if may_go(name):
                going.append(name)
                total -= num_bytes
        return going
