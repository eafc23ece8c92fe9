"""What the scheduler may ask of a prefix cache. Every implementation and decorator speaks this, and nothing else.

The cache is the only place where pages change hands. The scheduler decides who runs and how far; it names lengths in
tokens and never a page.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from sojourn.core.ids import RequestId
from sojourn.core.step import TokenArray
from sojourn.pages.holding import Holding


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Carried by a request, opened only by caches."""

    namespace: str = ""  # KV is never shared across namespaces (cache salt, tenant, adapter)
    lineage: Hashable = None  # requests of one lineage extend each other; None: stands alone


class Verdict(Enum):
    FINISHED = "finished"
    ABORTED = "aborted"
    RETRACTED = "retracted"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn of the cache ends. `finished_len` counts the output tokens that stand (FINISHED only)."""

    verdict: Verdict
    finished_len: int = 0


@dataclass(slots=True, eq=False)
class CacheRequest:
    """A request as the cache sees it. The scheduler owns it and embeds it; the cache sets `holding` and `prefix_len`.

    `tokens` is every token known so far (origin_input_ids, then output_ids): an append-only int32 buffer of which
    the first `num_tokens` are valid.
    """

    request_id: RequestId
    key: CacheKey
    num_prompt: int  # len(origin_input_ids)
    tokens: TokenArray
    num_tokens: int
    holding: Holding | None = field(default=None, repr=False)
    prefix_len: int = 0  # tokens whose KV was found at admission


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What admission would reuse, and from where: "none", "prefix" (the tree), or a decorator's own word."""

    prefix_len: int
    source: str = "none"


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Pages per account class of one pool; they add up to `total`."""

    free: int
    fenced: int
    reserved: int
    tree: int
    running: int
    idle: int
    total: int
    evictable: int  # of `tree` and `idle`: what a request could get without retraction


class PrefixCache(Protocol):
    def match_prefix(self, key: CacheKey, tokens: TokenArray) -> PrefixMatch:
        """Pure: changes nothing, not even the LRU order. At most len(tokens) - 1."""
        ...

    def admit(self, request: CacheRequest, length: int) -> bool:
        """Give `request` a holding on its longest reusable prefix, grown to at least `length` tokens in both pools.

        True: holding and prefix_len are set. False: pages are short and nothing changed. Evicts and demotes as needed.
        """
        ...

    def grow(self, request: CacheRequest, length: int) -> bool:
        """Allocate up to `length` tokens, evicting and demoting as needed. False: pages are short, nothing changed."""
        ...

    def commit(self, request: CacheRequest, length: int) -> None:
        """KV of [.., length) is final. Slides the window behind what no later token and no abort can need."""
        ...

    def cache_unfinished_req(self, request: CacheRequest) -> None:
        """Publish the committed whole pages of a running request, where its kind publishes before the end."""
        ...

    def cache_finished_req(self, request: CacheRequest, outcome: Outcome) -> None:
        """The request no longer runs: trim, publish, keep or give back, by outcome. Its holding is gone for the caller.

        Also called (FINISHED, ABORTED) for a request that waits, with `holding` None: never admitted, or retracted.
        """
        ...

    def capacity(self, length: int, chunk: int) -> str | None:
        """None if a request of `length` tokens fits an empty pool; else a sentence with its need and the pool's size."""
        ...

    def launch(self, step: int) -> None:
        """A step that may read pages is in flight; releases are fenced until it retires."""
        ...

    def retire(self, step: int) -> None: ...

    def flush(self) -> None:
        """Drop every page nobody runs on. What clients see of their conversations lives on."""
        ...

    def idle_holdings(self) -> Iterable[Holding]:
        """Every holding kept that no request runs on. For the audit."""
        ...
