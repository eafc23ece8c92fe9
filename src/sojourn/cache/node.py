"""What the radix tree is made of: nodes of several whole pages, leases on them, and points found in them. Shapes only."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sojourn.core.step import PageArray, TokenArray

NO_PAGES: PageArray = np.zeros(0, dtype=np.int32)


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """Whole pages `[end - num_pages, end)` of one run of tokens. `swa` has nulls where the window pool let go."""

    edge: TokenArray
    full: PageArray
    swa: PageArray  # parallel to `full`; empty when no layer slides
    swa_leases: NDArray[np.int32]  # parallel to `swa`: leases that cover the page
    parent: "Node | None"
    end: int  # pages from the root to this node's end
    num_leases: int = 0
    num_guarded_children: int = 0
    uses: int = 1  # how often it was found, its making included
    last_used: int = 0
    worth: float = 0.0  # see cache/evict.py; set when it is used
    is_attached: bool = True
    namespace: str | None = None  # of a root
    children: dict[bytes, "Node"] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Node(pages {self.start}..{self.end}, {self.num_leases} leases, {len(self.children)} children)"

    @property
    def rank(self) -> tuple[float, int]:
        """What is worth less is evicted first, of equals the one that was used longer ago."""
        return self.worth, self.last_used

    @property
    def num_pages(self) -> int:
        return len(self.full)

    @property
    def start(self) -> int:
        return self.end - len(self.full)

    @property
    def is_guarded(self) -> bool:
        """A lease lies here or below: these full pages must stay."""
        return self.num_leases > 0 or self.num_guarded_children > 0


@dataclass(slots=True, eq=False)
class Lease:
    """A receipt for the pages up to the end of `node`, and the window pages from `window_from` (an index) on."""

    node: Node
    window_from: int
    is_returned: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A point of the tree: `num_pages` pages along `path`, the last node perhaps not to its end."""

    path: tuple[Node, ...]
    num_pages: int


NO_MATCH = Match((), 0)
