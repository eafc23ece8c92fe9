"""The prefix cache over a radix tree: it owns the pages it publishes and lends them under a lease.

Moves pages between holdings, the tree and the free list; the tree (cache/tree.py) keeps shape and leases. Knows nothing of
scheduling, and nothing that outlives a request except the tree.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import assert_never

import numpy as np

from sojourn.cache.evict import USES_MAX
from sojourn.cache.grow import grow_kv_cache
from sojourn.cache.node import NO_MATCH, Lease, Match, Node
from sojourn.cache.protocol import (
    ALONE,
    CacheAudit,
    CacheKey,
    CacheRequest,
    CacheStatistics,
    Kept,
    Outcome,
    PrefixMatch,
    Room,
    Terms,
    Verdict,
)
from sojourn.cache.recount import check_loan, recount
from sojourn.cache.release import holding_of, trim_overshoot
from sojourn.cache.statistics import count_pages
from sojourn.cache.tiers import NoTier, Tier
from sojourn.cache.tree import Tree
from sojourn.core.errors import law
from sojourn.core.ids import NULL_PAGE, StepId
from sojourn.core.step import PageArray, Pool, TableEdit, TokenArray
from sojourn.core.tier import KvNames, TierStatistics
from sojourn.pages.holding import Holding, HoldingBook, HoldingState
from sojourn.pages.ledger import PageLedger


@dataclass(frozen=True, slots=True)
class RadixStatistics:
    num_nodes: int
    num_leases: int
    full_pages_evicted: int
    swa_pages_evicted: int
    splits: int
    merges: int


class RadixCache:
    """An InnerCache. Plain requests publish their prompt when it is computed and everything when they finish.

    What is evicted is offered to `tier`, which brings it back for those who wait for it.
    """

    def __init__(self, book: HoldingBook, tier: Tier | None = None) -> None:
        self.book = book
        self._tier = tier or NoTier()
        self.draft_book: HoldingBook | None = None
        self.tree = Tree(book.layout)
        self.account = book.accounts.open("tree")
        self._full_evicted = 0
        self._swa_evicted = 0
        self._evicted = [0] * len(book.ledgers)  # of each pool, whatever led to it
        self._flushed = (0,) * len(book.ledgers)  # of those
        self._asked_in: StepId | None = None  # the oldest step in flight when pages were last asked for
        self._asked = [0] * len(book.ledgers)  # pages of each pool, by everybody, since that is so

    def match_prefix(self, key: CacheKey, tokens: TokenArray) -> PrefixMatch:
        length = self._match(key, tokens, len(tokens)).num_pages * self.book.layout.page_size
        tail = self._tier.tail_of(key, tokens, len(tokens) - 1)
        if tail is not None and tail[0] == length:
            length = tail[1]
        return PrefixMatch(length, "prefix" if length else "none")

    def is_fetching(self, request: CacheRequest, terms: Terms | None = ALONE) -> bool:
        return self.fetch(request, terms, Room(self._could_make_room, self._make_room_on))

    def admit(self, request: CacheRequest, length: int, terms: Terms = ALONE) -> bool:
        return self.admit_within(request, length, len(request.reusable) - 1, terms)

    def covers(self, request: CacheRequest, length: int, terms: Terms = ALONE) -> bool:
        if request.holding is not None:
            return self.could_obtain(self.book.pages_wanted(request.holding, length), ())
        return self.could_admit(request, length, len(request.reusable) - 1, (), terms)

    def admit_within(self, request: CacheRequest, length: int, prefix_max: int, terms: Terms = ALONE) -> bool:
        law(request.holding is None, "%s is admitted twice", request.request_id)
        match = self._match(request.key, request.known, prefix_max)
        wanted = self._wanted(match, length)
        if not self.book.could_have(terms.added(wanted, self.book.layout), self._obtainable((), match)):
            return False
        pages = self.tree.matcher.pages_of(match)  # before evictions reshape the path
        lease = self.tree.lend(request.key.namespace, match)
        now = replace(terms, spare=0).added(wanted, self.book.layout)
        if not self.make_room(now) and not self.book.has_free(wanted):
            self.tree.take_back(lease)
            return False
        holding = self.book.open(request.label, lease, pages)
        self.book.grow(holding, length)
        request.holding, request.prefix_len = holding, holding.cache_protected_len
        self._tier.admitted(self, request, prefix_max)
        return True

    def grow(self, request: CacheRequest, length: int) -> bool:
        return grow_kv_cache(self, holding_of(request), length, 0, self.make_room)

    def commit(self, request: CacheRequest, length: int) -> None:
        self.book.commit(holding_of(request), length)

    def commit_draft(self, request: CacheRequest, length: int) -> None:
        """It keeps no draft model's KV."""

    def take_edits(self, request: CacheRequest) -> tuple[TableEdit, ...]:
        return self.book.take_edits(holding_of(request))

    def cache_unfinished_req(self, request: CacheRequest) -> None:
        """Output may still be trimmed, so only the prompt is offered before the end."""
        self.publish(request.key, holding_of(request), request.known, request.num_prompt)

    def cache_finished_req(self, request: CacheRequest, outcome: Outcome) -> None:
        holding, request.holding = request.holding, None
        match outcome.verdict:
            case Verdict.FINISHED:
                target = trim_overshoot(request, outcome.finished_len)
                if holding is not None:
                    self.publish(request.key, holding, request.known, target)
                    self.drop(holding)
            case Verdict.RETRACTED:
                if holding is not None:
                    self.absorb(request.key, holding, request.known, USES_MAX)  # sure to be asked for again
            case Verdict.ABORTED:
                if holding is not None:
                    self.drop(holding)
            case other:
                assert_never(other)

    def capacity(self, length: int, chunk: int) -> str | None:
        return self.book.capacity(length, chunk)

    def launch(self, step: StepId) -> None:
        self.book.launch(step)

    def retire(self, step: StepId) -> None:
        self.book.retire(step)

    def flush(self) -> None:
        before = tuple(self._evicted)
        self._tier.clear()
        self._evict_full(self.book.ledgers[Pool.FULL].num_pages, NoTier())
        gone = zip(self._flushed, before, self._evicted, strict=True)
        self._flushed = tuple(flushed + after - old for flushed, old, after in gone)

    def statistics(self) -> tuple[CacheStatistics, ...]:
        evicted, flushed = self._evicted, self._flushed
        return tuple(
            replace(s, evicted=evicted[s.pool] - flushed[s.pool], flushed=flushed[s.pool])
            for s in count_pages(self.book, self.account, self._evictable())
        )

    def tree_statistics(self) -> RadixStatistics:
        tree = self.tree
        return RadixStatistics(
            tree.num_nodes, len(tree.leases), self._full_evicted, self._swa_evicted, tree.num_splits, tree.num_merges
        )

    def facts(self) -> tuple[tuple[str, int], ...]:
        return tuple(asdict(self.tree_statistics()).items())

    def save(self, is_late: Callable[[], bool]) -> None:
        leaves = [node for node in self.tree.nodes() if not node.children]
        self._tier.save(sorted(leaves, key=lambda node: -node.last_used), is_late)

    def write_ahead(self, *, is_busy: bool) -> float | None:
        return None  # what plain requests leave is the tree's, and given up when pages are short

    def tier_statistics(self) -> TierStatistics | None:
        return self._tier.statistics()

    def idle_holdings(self) -> Iterable[Holding]:
        return ()

    def idle_drafts(self) -> Iterable[Holding]:
        return ()

    # -- for decorators
    def reach(self, key: CacheKey, tokens: TokenArray) -> int:
        size = self.book.layout.page_size
        return self.tree.reach(key.namespace, tokens, len(tokens) // size) * size

    def could_admit(
        self,
        request: CacheRequest,
        length: int,
        prefix_max: int,
        returning: Collection[Holding],
        terms: Terms = ALONE,
    ) -> bool:
        match = self._match(request.key, request.known, prefix_max)
        wanted = terms.added(self._wanted(match, length), self.book.layout)
        return self.book.could_have(wanted, self._obtainable(returning, match))

    def obtainable(self, returning: Collection[Holding]) -> tuple[int, ...]:
        return self._obtainable(returning, NO_MATCH)

    def could_obtain(self, pages: tuple[int, ...], returning: Collection[Holding]) -> bool:
        return self.book.could_have(pages, self._obtainable(returning, NO_MATCH))

    def fetch(self, request: CacheRequest, terms: Terms | None, room: Room) -> bool:
        return self._tier.is_fetching(self, request, terms, room)

    def copy_ahead(self, kept: Kept, *, is_busy: bool) -> float | None:
        return self._tier.copy_ahead(kept, is_busy=is_busy)

    def copy_out(self, key: CacheKey, tokens: TokenArray, holding: Holding | None) -> KvNames | None:
        return self._tier.copy_out(self, key, tokens, holding)

    def kv_names(self, key: CacheKey, tokens: TokenArray, num_pages: int, tail_len: int) -> KvNames | None:
        return self._tier.kv_names(key, tokens, num_pages, tail_len)

    def take_copy(self, pool: Pool, name: bytes, data: bytes) -> bool:
        return self._tier.take_copy(pool, name, data)

    def make_room(self, pages: tuple[int, ...]) -> bool:
        if not self.could_obtain(pages, ()):
            return False
        for ledger, wanted in zip(self.book.ledgers, self._with_the_next(pages), strict=True):
            short = wanted - ledger.num_free - ledger.num_fenced  # full pages first: they free window pages
            if short > 0:
                self._evict(ledger, min(short, self._evictable()[ledger.pool]))
        return self.book.has_free(pages)

    def _with_the_next(self, pages: tuple[int, ...]) -> Sequence[int]:
        """What to have free or fenced. While a step is in flight what is evicted comes a step late, to all who asked for some:
        so everybody's pages of this step are made ready for the next one, when as many are asked for about again.
        """
        oldest = self.book.oldest_in_flight
        if oldest is None:
            return pages
        if oldest != self._asked_in:
            self._asked_in, self._asked = oldest, [0] * len(pages)
        self._asked = [asked + wanted for asked, wanted in zip(self._asked, pages, strict=True)]
        return [wanted + asked for asked, wanted in zip(self._asked, pages, strict=True)]

    def slide(self, holding: Holding, settled: int) -> None:
        self.book.slide(holding, settled)
        if len(holding.lists) > 1:
            self.tree.narrow(_lease_of(holding), holding.lists[Pool.SWA].live_from)

    def publish(self, key: CacheKey, holding: Holding, tokens: TokenArray, length: int) -> None:
        size = self.book.layout.page_size
        first = holding.cache_protected_len // size
        end = min(length, holding.kv_committed_len) // size
        if end <= first:
            return
        lease = _lease_of(holding)
        node, lent = self._graft(lease.node, tokens[: end * size], holding, first)
        self.book.hand_over(holding, self.account, lent)
        fresh = self.tree.lend_node(node)
        holding.lease = fresh
        self.tree.take_back(lease)
        self.book.forget_window(holding, fresh.window_from)

    def absorb(
        self, key: CacheKey, holding: Holding, tokens: TokenArray, uses: int = 1, *, is_last: bool = False
    ) -> None:
        if holding.state is HoldingState.IDLE:  # one that ran goes on elsewhere, and soon
            self._tier.loses_tail(key, tokens, holding, waits=is_last)
        self.publish(key, holding, tokens, holding.kv_committed_len)
        node = _lease_of(holding).node
        node.uses = max(node.uses, uses)
        self.drop(holding)

    def drop(self, holding: Holding) -> None:
        lease = _lease_of(holding)
        self.book.close(holding)
        self.tree.take_back(lease)

    # -- inside
    def _could_make_room(self, pages: tuple[int, ...], terms: Terms) -> bool:
        return self.could_obtain(terms.added(pages, self.book.layout), ())

    def _make_room_on(self, pages: tuple[int, ...], terms: Terms) -> bool:
        return self.make_room(replace(terms, spare=0).added(pages, self.book.layout)) or self.book.has_free(pages)

    def _match(self, key: CacheKey, tokens: TokenArray, prefix_max: int) -> Match:
        """The longest reusable prefix that leaves a token to compute."""
        tree, layout = self.tree, self.book.layout
        length = max(0, min(prefix_max, len(tokens) - 1))
        match = tree.match(key.namespace, tokens, length // layout.page_size)
        tail = self._tier.tail_of(key, tokens, length)
        if tail is None or tail[0] <= match.num_pages * layout.page_size:
            return match
        # No point to resume at by itself, if the window before it is gone; with the tail it is one.
        pages = tail[0] // layout.page_size
        path, have = tree.matcher.walk(tree.roots, key.namespace, tokens, pages)
        is_live = tree.matcher.is_live(path, layout.window_needed_page(tail[1]), pages)
        return Match(tuple(path), pages) if have == pages and is_live else match

    def _wanted(self, match: Match, length: int) -> tuple[int, ...]:
        return (max(0, self.book.layout.pages_for(length) - match.num_pages),) * len(self.book.ledgers)

    def _obtainable(self, returning: Collection[Holding], match: Match) -> tuple[int, ...]:
        """What could be freed once the match is lent: exact, and cheap unless something returns."""
        if returning:
            kept = self.tree.leases.difference(_lease_of(holding) for holding in returning)
            tree = (ledger.balance(self.account) for ledger in self.book.ledgers)
            own = self.book.pages_own(returning)
            pinned = self.tree.pinned_by(kept, match)
            return tuple(t - p + o for t, p, o in zip(tree, pinned, own, strict=True))
        evictable = self._evictable()
        if match.num_pages == 0:
            return evictable
        return tuple(e - u for e, u in zip(evictable, self.tree.matcher.unguarded_pages(match), strict=True))

    def _evictable(self) -> tuple[int, ...]:
        full = self.book.ledgers[Pool.FULL].balance(self.account) - self.tree.num_guarded_pages
        return (full, self.tree.num_swa_pages - self.tree.num_swa_leased)[: len(self.book.ledgers)]

    def _graft(self, node: Node, tokens: TokenArray, holding: Holding, first: int) -> tuple[Node, list[PageArray]]:
        """Walk and extend the tree along `tokens` from page `first`; the node that ends there, and the twins found."""
        tree, size = self.tree, self.book.layout.page_size
        end = len(tokens) // size
        lent = [np.zeros(end - first, dtype=np.int32) for _ in holding.lists]
        at = first
        while at < end:
            child = node.children.get(tree.matcher.key(tokens, at))
            if child is None:
                own = [pages.pages[at:end].copy() for pages in holding.lists]
                swa = own[Pool.SWA] if len(own) > 1 else own[Pool.FULL][:0]
                return tree.add_leaf(node, tokens[at * size :].copy(), own[Pool.FULL], swa), lent
            child = tree.split_at(child, tree.matcher.common_pages(child, tokens, at, end))
            part = slice(at - first, child.end - first)
            lent[Pool.FULL][part] = child.full
            if len(lent) > 1:
                lent[Pool.SWA][part] = child.swa
                tree.fill(child, 0, holding.lists[Pool.SWA].pages[at : child.end])
            node, at = child, child.end
        return node, lent

    def _evict(self, ledger: PageLedger, count: int) -> None:
        if ledger.pool is Pool.FULL:
            self._evict_full(count, self._tier)
        else:
            self._evict_swa(count)

    def _evict_full(self, count: int, tier: Tier) -> None:
        """Free `count` full pages from unleased leaves, tail first, with the window pages behind them."""
        tree = self.tree
        while count > 0:
            leaf = tree.leaf_queue.pop()
            if leaf is None:
                return
            going = min(count, leaf.num_pages)
            tier.leaves(leaf, going)
            taken = tree.trim_leaf(leaf, going)
            for ledger, pages in zip(self.book.ledgers, taken, strict=True):
                ledger.release(pages, self.account)
                self._evicted[ledger.pool] += len(pages)
            count -= len(taken[Pool.FULL])
            self._full_evicted += len(taken[Pool.FULL])

    def _evict_swa(self, count: int) -> None:
        """Free `count` unleased window pages, oldest first, leaving tombstones."""
        while count > 0:
            node = self.tree.swa_queue.pop()
            if node is None:
                return
            bare = np.flatnonzero((node.swa != NULL_PAGE) & (node.swa_leases == 0))[:count]
            self._tier.loses_windows(node, bare)
            pages = self.tree.bury(node, bare)
            self.book.ledgers[Pool.SWA].release(pages, self.account)
            self.tree.swa_queue.push(node)
            count -= len(pages)
            self._swa_evicted += len(pages)
            self._evicted[Pool.SWA] += len(pages)

    def audit(self) -> CacheAudit:
        """Recount the tree and compare with its running counts, and what is lent with what the holdings list."""
        pages = recount(self.tree)
        for holding in self.book.holdings.values():
            check_loan(holding.lists, _lease_of(holding), holding.cache_protected_len // holding.page_size)
        return CacheAudit(self.account, pages, len(self.tree.leases))


def _lease_of(holding: Holding) -> Lease:
    lease = holding.lease
    assert isinstance(lease, Lease)
    return lease
