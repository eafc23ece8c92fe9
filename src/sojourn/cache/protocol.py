"""What the scheduler may ask of a prefix cache. Every implementation and decorator speaks this, and nothing else.

The cache is the only place where pages change hands. The scheduler decides who runs and how far; it names lengths in
tokens and never a page. One request's life:

    admit ── commit / grow / take_edits ... ── cache_unfinished_req ... ── cache_finished_req(FINISHED | ABORTED)
      ▲                                                                       │
      └────────────────────────── cache_finished_req(RETRACTED) ◀─────────────┘  waits, keeps its tokens, comes back
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from sojourn.core.ids import AccountId, RequestId, StepId
from sojourn.core.step import PageArray, Pool, TableEdit, TokenArray
from sojourn.core.tier import KvNames, TierStatistics
from sojourn.pages.holding import Holding, HoldingBook
from sojourn.pages.sizing import PoolLayout


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Carried by a request, opened only by caches."""

    namespace: str = ""  # KV is never shared across namespaces (cache salt, tenant, adapter)
    lineage: Hashable = None  # requests of one lineage extend each other; None: stands alone
    priority: int = 0  # what a lineage keeps of a higher one is given up later


@dataclass(frozen=True, slots=True)
class Terms:
    """What an admission leaves to others, besides having what it needs now.

    `spare`: tokens that it and those that run know already and will want places for: there must be pages for them, too,
    and they are not taken. `others`: how many run; each may need a page more before the next step. `yields`: what is kept
    for somebody who ranks above the request is not given up for it.
    """

    spare: int = 0
    others: int = 0
    yields: bool = False

    def added(self, pages: tuple[int, ...], layout: PoolLayout) -> tuple[int, ...]:
        """`pages` of each pool, and what must be there besides. A window is bounded, whoever runs in it.

        Whole pages only: who runs alone and fits an empty pool is never asked for more than that.
        """
        full, *windows = pages
        spare = self.spare // layout.page_size
        return (full + self.others + spare, *(window + self.others for window in windows))


ALONE = Terms()


@dataclass(frozen=True, slots=True)
class Room:
    """How a cache makes room for pages of each pool, on somebody's terms."""

    could: Callable[[tuple[int, ...], Terms], bool]  # at once or after the fence; pure
    make: Callable[[tuple[int, ...], Terms], bool]  # False: not yet


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
    prefix_len: int = 0  # tokens whose KV was found at admission; the first step's Work starts here
    prefix_max: int | None = None  # reuse no more than this: the rows from here on must be computed
    draft: Holding | None = field(default=None, repr=False)  # the draft model's KV; only `DraftPool` sets it
    fetch: object = field(default=None, repr=False)  # what a slower tier reads for it; only the tier sets these five
    is_fetched: bool = False  # nothing more comes
    is_refetched: bool = False  # it has had its second try
    waits_for_tier: bool = False  # as it was told last
    fetched_from: int | None = None  # where pages of its prompt begin that were read

    @property
    def label(self) -> str:
        """Whose pages these are, for reports: its lineage keeps them when it is over."""
        return self.request_id if self.key.lineage is None else f"{self.key.lineage} since {self.request_id}"

    @property
    def draft_len(self) -> int:
        """Tokens whose KV the draft model has."""
        return 0 if self.draft is None else self.draft.kv_committed_len

    @property
    def known(self) -> TokenArray:
        """The valid tokens: a view."""
        return self.tokens[: self.num_tokens]

    def source_of(self, match: "PrefixMatch") -> tuple[str, int]:
        """Where its prefix was found, and how many tokens of it were read for it."""
        if match.source != "prefix" or self.fetched_from is None or match.prefix_len <= self.fetched_from:
            return match.source, 0
        return "disk", match.prefix_len - self.fetched_from

    @property
    def reusable(self) -> TokenArray:
        """What to match for an admission: a match ends before the last of them. A view."""
        return self.known if self.prefix_max is None else self.known[: self.prefix_max + 1]


@dataclass(slots=True, eq=False)
class Kept:
    """What is kept of an idle conversation, being copied to a slower tier. Only the tier moves what has a default.

    `tokens` are those that the holding's KV was computed for.
    """

    key: CacheKey
    tokens: TokenArray = field(repr=False)
    holding: Holding = field(repr=False)
    names: list[bytes] = field(default_factory=list, repr=False)  # of the pages that are done


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What admission would reuse, and from where: "none", "prefix" (the tree), or a decorator's own word.

    "disk" is said of a prefix that was read for the request.
    """

    prefix_len: int
    source: str = "none"
    miss: str | None = None  # why not more, where a decorator knows of more; None: no miss


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Pages per account class of one pool; free .. idle add up to `total`."""

    pool: Pool
    free: int
    fenced: int
    reserved: int
    tree: int
    running: int
    idle: int
    total: int
    evictable: int  # of `tree` and `idle`: what a request could get without retraction
    evicted: int = 0  # since the start, from the tree for somebody who needed pages
    flushed: int = 0  # since the start, from the tree because all of it was to go


@dataclass(frozen=True, slots=True, eq=False)
class CacheAudit:
    """What a cache says it owns and lends, recounted from its own structures."""

    account: AccountId | None  # the tree's; None: it owns nothing
    pages: tuple[PageArray, ...]  # per pool, every page of that account
    leases: int  # receipts not yet taken back


class PrefixCache(Protocol):
    @property
    def book(self) -> HoldingBook:
        """The ledgers and the holdings, for audits and for `take_edits`."""
        ...

    @property
    def draft_book(self) -> HoldingBook | None:
        """The draft model's, whose pool is apart; None: there is none."""
        ...

    def match_prefix(self, key: CacheKey, tokens: TokenArray) -> PrefixMatch:
        """Pure: changes nothing, not even the LRU order. At most len(tokens) - 1. `tokens` holds valid tokens only."""
        ...

    def is_fetching(self, request: CacheRequest, terms: Terms | None = ALONE) -> bool:
        """Whether to wait with its admission: a slower tier is reading what it could reuse. Ask before every step; each
        time what has come is brought in. Others need not wait for it.

        `terms` as for an admission up to no token at all. None: it would not be tried now, and nothing is begun for it.
        """
        ...

    def admit(self, request: CacheRequest, length: int, terms: Terms = ALONE) -> bool:
        """Give `request` a holding on its longest reusable prefix, grown to at least `length` tokens in every pool.

        True: holding and prefix_len are set; prefix_len is what match_prefix says now of `request.reusable`. False: pages are short now; try again after
        the next step retires, or retract. The request is unchanged. Evicts and demotes only if that will cover the
        need; with a step in flight what was evicted waits behind the fence, and the retry finds it free.
        """
        ...

    def covers(self, request: CacheRequest, length: int, terms: Terms = ALONE) -> bool:
        """Whether there are pages for `admit`, or for `grow` if it runs, at once or after the fence. Pure."""
        ...

    def grow(self, request: CacheRequest, length: int) -> bool:
        """Own places up to `length` tokens, evicting and demoting as needed. Call it for every step of a request.

        First slides the window behind what no later token and no abort can need. False: as for `admit`.
        """
        ...

    def commit(self, request: CacheRequest, length: int) -> None:
        """KV of [kv_committed_len, length) is final: computed, and accepted if it was a draft."""
        ...

    def commit_draft(self, request: CacheRequest, length: int) -> None:
        """The draft model has computed the KV of `[0, length)` for tokens that stand."""
        ...

    def take_edits(self, request: CacheRequest) -> tuple[TableEdit, ...]:
        """Page-table entries that changed since the last call; all live ones after an admission."""
        ...

    def cache_unfinished_req(self, request: CacheRequest) -> None:
        """Publish a running request's committed whole prompt pages, where its kind publishes before the end.

        Worth calling once, when the prompt is computed.
        """
        ...

    def cache_finished_req(self, request: CacheRequest, outcome: Outcome) -> None:
        """The request no longer runs: trim, publish, keep or give back, by outcome.

        Afterwards `request.holding` is None and, when FINISHED, `num_tokens` is cut to `num_prompt + finished_len`. Legal
        for a request without a holding: ABORTED when it was never admitted, ABORTED or FINISHED when it was retracted. A
        RETRACTED request may be admitted again with all its tokens.
        """
        ...

    def capacity(self, length: int, chunk: int) -> str | None:
        """None if a request of `length` tokens fits empty pools; else a sentence with its need and the pool's size."""
        ...

    def launch(self, step: StepId) -> None:
        """A step that may read pages is in flight; releases are fenced until it retires. Steps retire in launch order."""
        ...

    def retire(self, step: StepId) -> None: ...

    def flush(self) -> None:
        """Drop every page nobody runs on, and what a slower tier keeps. What clients see of their conversations lives on."""
        ...

    def save(self, is_late: Callable[[], bool]) -> None:
        """Give everything kept to the slower tier, until it is late: nothing will run any more."""
        ...

    def write_ahead(self, *, is_busy: bool) -> float | None:
        """Give a little of what idle conversations keep to the slower tier, and keep it. To be called between two steps.

        Seconds until there is more to do; None: not before something else becomes idle.
        """
        ...

    def tier_statistics(self) -> TierStatistics | None:
        """Of the slower tier; None: there is none."""
        ...

    def statistics(self) -> tuple[CacheStatistics, ...]:
        """One per pool, the draft model's last."""
        ...

    def facts(self) -> tuple[tuple[str, int], ...]:
        """Named counts of what it keeps and has done, for reports: it must not fail on a broken book."""
        ...

    def idle_holdings(self) -> Iterable[Holding]:
        """Every holding kept that no request runs on. For the audit."""
        ...

    def idle_drafts(self) -> Iterable[Holding]:
        """The same of the draft model's KV."""
        ...

    def audit(self) -> CacheAudit:
        """Check the cache's own structures and say what it owns and lends. Changes nothing; O(pages)."""
        ...


class InnerCache(PrefixCache, Protocol):
    """What a decorator may ask besides. Pages per pool are tuples indexed by Pool."""

    def admit_within(self, request: CacheRequest, length: int, prefix_max: int, terms: Terms = ALONE) -> bool:
        """As `admit`, reusing at most `prefix_max` tokens of the prefix."""
        ...

    def reach(self, key: CacheKey, tokens: TokenArray) -> int:
        """Tokens whose full pages are kept, whatever became of their windows. Pure."""
        ...

    def could_admit(
        self,
        request: CacheRequest,
        length: int,
        prefix_max: int,
        returning: Collection[Holding],
        terms: Terms = ALONE,
    ) -> bool:
        """Whether `admit_within` would be covered, at once or after the fence, were `returning` given up. Pure."""
        ...

    def obtainable(self, returning: Collection[Holding]) -> tuple[int, ...]:
        """Pages per pool that eviction could free, were `returning` given up; free and fenced ones not counted."""
        ...

    def could_obtain(self, pages: tuple[int, ...], returning: Collection[Holding]) -> bool:
        """Whether `pages[pool]` pages of each pool could be free, at once or after the fence. Pure."""
        ...

    def fetch(self, request: CacheRequest, terms: Terms | None, room: Room) -> bool:
        """As `is_fetching`, with the decorator's way to make room."""
        ...

    def copy_ahead(self, kept: Kept, *, is_busy: bool) -> float | None:
        """Give a little of it to the slower tier. Seconds until it goes on; None: it is done, or not worth it."""
        ...

    def copy_out(self, key: CacheKey, tokens: TokenArray, holding: Holding | None) -> KvNames | None:
        """Give a little of the KV of these tokens to the slower tier, and say its names; None: there is no tier.

        `holding` is what is kept of them besides the tree. To be called until nothing is missing.
        """
        ...

    def kv_names(self, key: CacheKey, tokens: TokenArray, num_pages: int, tail_len: int) -> KvNames | None:
        """What the slower tier calls the KV of so many whole pages of these tokens, and of so many tokens behind them.

        None: there is no tier. Pure.
        """
        ...

    def take_copy(self, pool: Pool, name: bytes, data: bytes) -> bool:
        """Have the slower tier keep a page that came from elsewhere under the name that it would give it. False: not now."""
        ...

    def make_room(self, pages: tuple[int, ...]) -> bool:
        """Evict unleased pages until `pages[pool]` are free in each pool. False: not yet; see `admit`."""
        ...

    def slide(self, holding: Holding, settled: int) -> None:
        """Let the window pool go behind `settled` and behind the committed window; lends no more than is read."""
        ...

    def publish(self, key: CacheKey, holding: Holding, tokens: TokenArray, length: int) -> None:
        """Hand the committed whole pages below `length` to the tree; the holding goes on as a borrower."""
        ...

    def absorb(
        self, key: CacheKey, holding: Holding, tokens: TokenArray, uses: int = 1, *, is_last: bool = False
    ) -> None:
        """Hand over every committed whole page, take the lease back, close: retraction and demotion.

        They count as found `uses` times: what is likely to be asked for again is evicted later. `is_last`: nothing will
        run any more, so there is time to wait for a slower tier.
        """
        ...

    def drop(self, holding: Holding) -> None:
        """Take the lease back and close; what was own is free."""
        ...
