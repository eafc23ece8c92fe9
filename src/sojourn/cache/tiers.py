"""A slower tier below the tree, as the cache sees it: what leaves is offered to it, what is asked for may be there.

The tree stays the only owner of pages. The tier holds copies of their bytes, under names made of tokens, and gives them
back as ordinary pages of the tree: nobody runs on a tier. `NoTier` is the one that keeps nothing.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.cache.node import Node
from sojourn.cache.protocol import CacheKey, CacheRequest, Kept, Room, Terms
from sojourn.cache.tree import Tree
from sojourn.core.ids import AccountId
from sojourn.core.step import Pool, TokenArray
from sojourn.core.tier import KvNames, TierStatistics
from sojourn.pages.holding import Holding, HoldingBook


class Ground(Protocol):
    """Where pages are hung up: a cache's tree, and the account that owns its pages."""

    @property
    def tree(self) -> Tree: ...

    @property
    def book(self) -> HoldingBook: ...

    @property
    def account(self) -> AccountId: ...


class Tier(Protocol):
    def leaves(self, leaf: Node, count: int) -> None:
        """The last `count` pages of `leaf` are about to be given up, with the window pages behind them."""
        ...

    def loses_windows(self, node: Node, which: NDArray[np.intp]) -> None:
        """These window pages of `node` are about to be given up."""
        ...

    def loses_tail(self, key: CacheKey, tokens: TokenArray, holding: Holding, *, waits: bool) -> None:
        """A kept conversation is given up: its whole pages are the tree's, its last tokens' page is about to go.

        `waits`: for room, as `save` does.
        """
        ...

    def save(self, leaves: Iterable[Node], is_late: Callable[[], bool]) -> None:
        """Keep copies of every page on the way to these leaves, waiting for room, until it is late."""
        ...

    def copy_ahead(self, kept: Kept, *, is_busy: bool) -> float | None:
        """Keep copies of some of its pages; see `InnerCache`."""
        ...

    def copy_out(self, ground: Ground, key: CacheKey, tokens: TokenArray, holding: Holding | None) -> KvNames | None:
        """Keep copies of some pages of these tokens; see `InnerCache`."""
        ...

    def kv_names(self, key: CacheKey, tokens: TokenArray, num_pages: int, tail_len: int) -> KvNames | None: ...

    def take_copy(self, pool: Pool, name: bytes, data: bytes) -> bool: ...

    def is_fetching(self, ground: Ground, request: CacheRequest, terms: Terms | None, room: Room) -> bool:
        """Whether the request should wait: pages of its prompt are on their way into the tree, or will be soon.

        Asked again and again, it brings in what has come. `terms` are those of its admission, with all that it knows as
        `spare`; None: it would not be tried now, and nothing is begun for it.
        """
        ...

    def tail_of(self, key: CacheKey, tokens: TokenArray, prefix_max: int) -> tuple[int, int] | None:
        """Tokens that follow the last whole page, `[start, end)`, and were fetched: `end` can be resumed on if the tree has
        what is before `start`. Pure.
        """
        ...

    def admitted(self, ground: Ground, request: CacheRequest, prefix_max: int) -> None:
        """It has its holding, which ends in the tree's pages; a tail that was fetched becomes its own."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def statistics(self) -> TierStatistics | None: ...


class NoTier:
    """What leaves is gone."""

    def leaves(self, leaf: Node, count: int) -> None:
        """Nothing is kept."""

    def loses_windows(self, node: Node, which: NDArray[np.intp]) -> None:
        """Nothing is kept."""

    def loses_tail(self, key: CacheKey, tokens: TokenArray, holding: Holding, *, waits: bool) -> None:
        """Nothing is kept."""

    def save(self, leaves: Iterable[Node], is_late: Callable[[], bool]) -> None:
        """Nothing is kept."""

    def copy_ahead(self, kept: Kept, *, is_busy: bool) -> float | None:
        return None

    def copy_out(self, ground: Ground, key: CacheKey, tokens: TokenArray, holding: Holding | None) -> KvNames | None:
        return None

    def kv_names(self, key: CacheKey, tokens: TokenArray, num_pages: int, tail_len: int) -> KvNames | None:
        return None

    def take_copy(self, pool: Pool, name: bytes, data: bytes) -> bool:
        return False

    def is_fetching(self, ground: Ground, request: CacheRequest, terms: Terms | None, room: Room) -> bool:
        return False

    def tail_of(self, key: CacheKey, tokens: TokenArray, prefix_max: int) -> tuple[int, int] | None:
        return None

    def admitted(self, ground: Ground, request: CacheRequest, prefix_max: int) -> None:
        """Nothing was fetched."""

    def clear(self) -> None:
        """Nothing is kept."""

    def statistics(self) -> TierStatistics | None:
        return None
