"""Where a sequence has been before: an index of its own tokens, kept as it grows and as it is cut.

        tokens   0 .............. place ............... len
                     [the same n | goes on so]    [the last n] what comes next?
                                  ▲                          │
                                  └────────── earlier ───────┘

A place is a number of tokens, and stands for the n tokens before it. `_latest` has the last place of each run of n tokens,
`_earlier` the one before each place, so that cutting is a walk back over what is cut. A token costs the same however many
there are. Knows no models and no requests.
"""

from array import array
from collections.abc import Iterable

import numpy as np

from sojourn.core.step import TokenArray

_BITS = 21  # of a token id in a key; ids that differ only above them share a key, and their tokens are compared anyway
_NOWHERE = 0  # no run of n tokens ends at place 0


class TokenIndex:
    """`run` tokens are the shortest that count as having been seen; of their places the `looks` latest are compared."""

    def __init__(self, *, run: int, looks: int, longest: int) -> None:
        self._run = run
        self._looks = looks
        self._longest = longest
        self._mask = (1 << _BITS * run) - 1
        self._tokens = array("i")
        self._earlier = array("i", [_NOWHERE])  # one more than tokens: places are counted from 0
        self._latest: dict[int, int] = {}
        self._key = 0  # of the last `run` tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self) -> list[int]:
        return self._tokens.tolist()

    def extend(self, tokens: Iterable[int]) -> None:
        """These come next."""
        key, mask, run, latest = self._key, self._mask, self._run, self._latest
        kept, earlier = self._tokens, self._earlier
        for token in tokens:
            kept.append(token)
            key = (key << _BITS ^ token) & mask
            if (place := len(kept)) < run:
                earlier.append(_NOWHERE)
                continue
            earlier.append(latest.get(key, _NOWHERE))
            latest[key] = place
        self._key = key

    def cut(self, length: int) -> None:
        """Forget everything past `length` tokens."""
        if length >= len(self._tokens):
            return
        for place in range(len(self._tokens), max(length, self._run - 1), -1):
            key, before = self._key_at(place), self._earlier[place]
            if before == _NOWHERE:
                del self._latest[key]
            else:
                self._latest[key] = before
        del self._tokens[length:]
        del self._earlier[length + 1 :]
        self._key = self._key_at(length)

    def become(self, tokens: TokenArray) -> None:
        """Cut to what the two have in common, and go on with the rest of `tokens`."""
        shared = min(len(tokens), len(self._tokens))
        # No name holds the view of the buffer: one that is being looked at cannot grow.
        differ = np.flatnonzero(np.frombuffer(self._tokens, dtype=np.int32, count=shared) != tokens[:shared])
        common = int(differ[0]) if len(differ) else shared
        self.cut(common)
        self.extend(tokens[common:].tolist())

    def longest_match(self) -> tuple[int, int]:
        """An earlier place whose tokens are the last ones too, and how many are the same: the longest of the latest
        places, and of equals the latest. (0, 0): there is none."""
        best, place, length = _NOWHERE, len(self._tokens), 0
        for _ in range(self._looks):
            place = self._earlier[place]
            if place == _NOWHERE:
                break
            same = self._same(place)
            if same > length:
                best, length = place, same
                if length >= self._longest:
                    break
        return (best, length) if length >= self._run else (_NOWHERE, 0)

    def after(self, place: int, count: int) -> tuple[int, ...]:
        """What followed there. Where that is the end, it is taken to come round again: a list goes on as it went."""
        followed = self._tokens[place : place + count].tolist()
        while followed and len(followed) < count:
            followed += followed[: count - len(followed)]
        return tuple(followed)

    def _same(self, place: int) -> int:
        """How many tokens before `place` are the last ones, up to `longest`."""
        tokens, end = self._tokens, len(self._tokens)
        most = min(place, self._longest)
        for count in range(most):
            if tokens[place - 1 - count] != tokens[end - 1 - count]:
                return count
        return most

    def _key_at(self, place: int) -> int:
        """Of the `run` tokens before `place`, or of as many as there are."""
        key = 0
        for token in self._tokens[max(0, place - self._run) : place]:
            key = key << _BITS ^ token
        return key & self._mask
