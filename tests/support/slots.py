"""States of one holding put up directly, and what an operation on it gave back, in positions."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from sojourn.cache.none import NoneCache
from sojourn.cache.protocol import CacheKey, CacheRequest, Outcome, Verdict
from sojourn.cache.radix import RadixCache
from sojourn.cache.release import release_kv_cache
from sojourn.core.ids import NULL_PAGE, RequestId
from sojourn.core.step import Pool
from sojourn.pages.accounts import FENCED, FREE
from sojourn.pages.holding import Holding, HoldingBook
from sojourn.pages.sizing import NUM_RESERVED, PoolLayout
from sojourn.sessions.slots import SessionAwareCache

LINEAGE = "s1"


@dataclass(frozen=True)
class Lengths:
    """`comm/alloc/cur/prot` of the tables."""

    committed: int
    allocated: int
    evicted: int
    protected: int

    @classmethod
    def of(cls, holding: Holding) -> "Lengths":
        return cls(
            holding.kv_committed_len, holding.kv_allocated_len, holding.swa_evicted_seqlen, holding.cache_protected_len
        )


class Rig:
    """A session cache over one inner cache, with big pools, and one session called LINEAGE."""

    def __init__(
        self, kind: str, page_size: int, window: int = 64, *, publishes: bool = False, pages: int = 2048
    ) -> None:
        layout = PoolLayout(page_size, window)
        self.page_size = page_size
        self.book = HoldingBook(layout, (pages + NUM_RESERVED,) * layout.num_pools)
        self.radix = RadixCache(self.book) if kind == "radix" else None
        self.inner = self.radix or NoneCache(self.book)
        self.cache = SessionAwareCache(self.inner, publishes=publishes)
        self._count = 0

    def request(self, num_prompt: int, num_tokens: int | None = None, lineage: str | None = LINEAGE) -> CacheRequest:
        """Tokens are a fixed sequence, so requests of any length continue each other."""
        self._count += 1
        tokens = np.arange(4096, dtype=np.int32) * 7 % 1009
        count = num_prompt if num_tokens is None else num_tokens
        return CacheRequest(RequestId(f"r{self._count}"), CacheKey("", lineage), num_prompt, tokens, count)

    def seed_tree(self, length: int) -> None:
        """Another request has published the first `length` tokens. Nothing happens over `none`."""
        if length and self.radix is not None:
            request = self.request(length, length + 1, lineage=None)
            assert self.inner.admit(request, length)
            self.inner.commit(request, length)
            release_kv_cache(self.inner, request, Outcome(Verdict.FINISHED, 0))

    def running(
        self, *, comm: int, alloc: int, prot: int = 0, settled: int = 0, num_prompt: int, num_tokens: int, cur: int = 0
    ) -> CacheRequest:
        """A turn that runs on a holding of these lengths. `cur` breaks the slide law where it must: a test-only state."""
        self.seed_tree(prot)
        if settled:
            self.cache.begin(CacheKey("", LINEAGE), settled)
        request = self.request(num_prompt, num_tokens)
        assert self.cache.admit(request, alloc)
        holding = holding_of(request)
        assert holding.cache_protected_len == (prot if self.radix else 0)
        self.book.commit(holding, comm)
        self.book._let_go(holding, 0, cur // self.page_size)
        return request

    def idle(self, *, comm: int, alloc: int, prot: int = 0, settled: int) -> Holding:
        """A slot that keeps a holding of these lengths."""
        request = self.running(comm=comm, alloc=alloc, prot=prot, num_prompt=settled, num_tokens=settled)
        slot = self.cache.slot(LINEAGE)
        assert slot is not None
        slot.settled = settled
        self.cache._park(slot, request)
        holding = slot.holding
        assert holding is not None
        return holding

    def idle_holding(self) -> Holding:
        slot = self.cache.slot(LINEAGE)
        assert slot is not None
        assert slot.holding is not None, "the slot is empty"
        return slot.holding

    def leases(self) -> int:
        return len(self.radix.tree.leases) if self.radix else 0


def holding_of(request: CacheRequest) -> Holding:
    assert request.holding is not None
    return request.holding


class Freed:
    """What a holding gives back inside the `with`: positions per pool, clipped to what was allocated before."""

    def __init__(self, rig: Rig, holding: Holding) -> None:
        self._rig = rig
        self._account = holding.account
        self._alloc = holding.kv_allocated_len
        self._lists = [pages.pages.copy() for pages in holding.lists]
        self.positions: dict[Pool, list[int]] = {}

    def __enter__(self) -> Self:
        self._serials = [ledger.statistics().moves for ledger in self._rig.book.ledgers]
        return self

    def __exit__(self, *error: object) -> None:
        size = self._rig.page_size
        for ledger, serial, pages in zip(self._rig.book.ledgers, self._serials, self._lists, strict=True):
            where = {int(page): index for index, page in enumerate(pages) if page != NULL_PAGE}
            freed = [
                int(page)
                for move in ledger.moves_since(serial)
                if move.source == self._account and move.target in (FREE, FENCED)
                for page in move.pages
            ]
            assert len(freed) == len(set(freed)), f"freed twice in {ledger.pool.name}: {freed}"
            self.positions[ledger.pool] = sorted(
                position
                for page in freed
                if page in where
                for position in range(where[page] * size, min((where[page] + 1) * size, self._alloc))
            )

    def is_exactly(self, full: range, swa: range) -> None:
        assert self.positions == {Pool.FULL: list(full), Pool.SWA: list(swa)}
