"""How a running request comes by more KV, over any cache: slide, make room, grow. Knows no kinds of requests."""

from collections.abc import Callable

from sojourn.cache.protocol import InnerCache
from sojourn.pages.holding import Holding

MakeRoom = Callable[[tuple[int, ...]], bool]  # as `InnerCache.make_room`


def grow_kv_cache(cache: InnerCache, holding: Holding, length: int, settled: int, make_room: MakeRoom) -> bool:
    """Own places up to `length`, the window kept behind `settled`. False: not yet; nothing has grown."""
    if len(holding.lists) > 1:
        cache.slide(holding, settled)
    if length > holding.num_places and not make_room(cache.book.pages_wanted(holding, length)):
        return False
    cache.book.grow(holding, length)
    return True
