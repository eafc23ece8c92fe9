"""How many pages things need and how many fit. Pure arithmetic: no page, no owner, no model file.

Lengths are in tokens, counts in pages. `total` pages of a pool include the null page, which nobody can have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sojourn.core.errors import law
from sojourn.core.step import Pool

PAGE_SIZE_MAX = 256
NUM_RESERVED = 1  # the null page of each pool


def is_page_size(size: int) -> bool:
    """A power of two up to `PAGE_SIZE_MAX`."""
    return 0 < size <= PAGE_SIZE_MAX and size & (size - 1) == 0


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """`window` counts the tokens a sliding layer attends to, the new one included; 0: no layer slides, one pool only."""

    page_size: int
    window: int = 0

    def __post_init__(self) -> None:
        law(is_page_size(self.page_size), "page size %d is not a power of two up to 256", self.page_size)
        law(self.window >= 0, "window %d", self.window)

    @property
    def num_pools(self) -> int:
        return 2 if self.window else 1

    def pages_for(self, length: int) -> int:
        """Pages that hold `length` tokens."""
        return -(-length // self.page_size)

    def floor(self, length: int) -> int:
        """The largest whole-page length not above `length`."""
        return length - length % self.page_size

    def window_first_page(self, length: int) -> int:
        """First page of the window pool kept behind `length`: a later token resumes at `length` or one below it."""
        return max(0, length - self.window) // self.page_size

    def window_needed_page(self, length: int) -> int:
        """First page of the window pool that a token at position `length` attends to."""
        return max(0, length - (self.window - 1)) // self.page_size


def window_pages_max(layout: PoolLayout) -> int:
    """Pages one window can touch, wherever it begins."""
    return layout.pages_for(layout.window) + 1


def request_need(layout: PoolLayout, length: int, chunk: int) -> tuple[int, ...]:
    """Pages a request of `length` tokens holds at most at one time in each pool, prefilled `chunk` tokens at a time.

    Window pool: the window behind its start (an abort returns there), the one behind its committed length, a chunk.
    """
    full = layout.pages_for(length)
    if not layout.window:
        return (full,)
    return full, min(full, 2 * window_pages_max(layout) + layout.pages_for(chunk))


def misfit(layout: PoolLayout, totals: Sequence[int], length: int, chunk: int) -> str | None:
    """None if a request fits empty pools of `totals` pages; else a sentence with its need and the pool's size."""
    for pool, need, total in zip(Pool, request_need(layout, length, chunk), totals, strict=False):
        usable = total - NUM_RESERVED
        if need > usable:
            return (
                f"{length} tokens need {need} pages of {layout.page_size} tokens in the {pool.name} pool, "
                f"which has {usable}"
            )
    return None


def pool_totals(layout: PoolLayout, tokens: int, *, chunk: int, running_max: int) -> tuple[int, ...]:
    """Pages in each pool, null pages included, of an engine whose full pool holds `tokens`.

    The window pool has what `running_max` requests need at most at one time, never more than the full pool: idle
    conversations keep at most one window each and give it up when pages are short.
    """
    full = layout.pages_for(tokens)
    needs = request_need(layout, tokens, chunk)
    if len(needs) == 1:
        return (full + NUM_RESERVED,)
    return full + NUM_RESERVED, min(full, running_max * needs[Pool.SWA]) + NUM_RESERVED


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token leaves in the pools, as numbers of the model."""

    num_full_layers: int
    num_sliding_layers: int
    num_kv_heads: int
    head_dim: int
    value_bytes: int  # of one stored number: 2 for f16, 4 for f32


def page_bytes(shape: KvShape, layout: PoolLayout) -> tuple[int, ...]:
    """Bytes of K and V of one page in each pool. A model whose layers all slide has full pages of 0 bytes."""
    per_layer = 2 * shape.num_kv_heads * shape.head_dim * shape.value_bytes * layout.page_size
    sizes = (shape.num_full_layers * per_layer, shape.num_sliding_layers * per_layer)
    return sizes[: layout.num_pools]
