"""The radix cache and a dumb twin, side by side, under whatever hypothesis thinks of."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sojourn.audit.census import census
from sojourn.cache.node import Lease
from sojourn.cache.protocol import CacheKey, CacheRequest, Outcome, Verdict
from sojourn.cache.radix import RadixCache
from sojourn.core.ids import RequestId
from sojourn.core.step import Pool
from sojourn.pages.holding import Holding, HoldingBook
from sojourn.pages.sizing import NUM_RESERVED, PoolLayout
from tests.twins.tree import Prefix, TwinTree

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


def entries(cache: RadixCache) -> tuple[dict[Prefix, int], dict[Prefix, int]]:
    """What the tree holds, flattened: prefix -> page."""
    full: dict[Prefix, int] = {}
    swa: dict[Prefix, int] = {}
    size = cache.book.layout.page_size
    for namespace, root in cache.tree.roots.items():
        stack = [(child, ()) for child in root.children.values()]
        while stack:
            node, before = stack.pop()
            edge = tuple(node.edge.tolist())
            for index in range(node.num_pages):
                prefix = (namespace, before + edge[: (index + 1) * size])
                assert prefix not in full, "two nodes for one prefix"
                full[prefix] = int(node.full[index])
                if len(node.swa) and node.swa[index]:
                    swa[prefix] = int(node.swa[index])
            stack += [(child, before + edge) for child in node.children.values()]
    return full, swa


class RadixMachine(RuleBasedStateMachine):
    @initialize(
        size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([0, 1, 3, 6]),
        full_pages=st.integers(16, 24),
        swa_pages=st.integers(16, 20),
    )
    def build(self, size: int, window: int, full_pages: int, swa_pages: int) -> None:
        layout = PoolLayout(size, window)
        totals = (full_pages + NUM_RESERVED, swa_pages + NUM_RESERVED)
        self.cache = RadixCache(HoldingBook(layout, totals[: layout.num_pools]))
        self.twin = TwinTree(size, window)
        self.running: list[CacheRequest] = []
        self.count = 0

    @rule(tokens=TOKENS, namespace=st.sampled_from(["", "b"]))
    def admit(self, tokens: list[int], namespace: str) -> None:
        self.count += 1
        array = np.array(tokens, dtype=np.int32)
        request = CacheRequest(RequestId(f"r{self.count}"), CacheKey(namespace), len(tokens), array, len(tokens))
        expected = self.twin.match(namespace, tokens)
        before = entries(self.cache)
        assert self.cache.match_prefix(request.key, array).prefix_len == expected
        if self.cache.admit(request, len(tokens)):
            assert request.prefix_len == expected
            self.running.append(request)
        else:
            assert entries(self.cache) == before, "a refused admission evicted"

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), share=st.integers(0, 100))
    def commit_and_publish(self, which: int, share: int) -> None:
        request = self._pick(which)
        self._commit(request, share)
        self._twin_publishes(request, request.num_prompt)
        self.cache.cache_unfinished_req(request)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), verdict=st.sampled_from(list(Verdict)))
    def end(self, which: int, verdict: Verdict) -> None:
        request = self._pick(which)
        self._commit(request, 100)
        if verdict is not Verdict.ABORTED:
            self._twin_publishes(request, request.num_tokens)
        self.running.remove(request)
        self.cache.cache_finished_req(request, Outcome(verdict))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def slide(self, which: int) -> None:
        self.cache.grow(self._pick(which), 1)

    @rule()
    def flush(self) -> None:
        self.cache.flush()

    @invariant()
    def laws(self) -> None:
        census(self.cache)
        self.twin.leases = [self._lease(request) for request in self.running]
        self.twin.accept_evictions(*entries(self.cache))

    def teardown(self) -> None:
        for request in self.running:
            self.cache.cache_finished_req(request, Outcome(Verdict.ABORTED))
        self.running.clear()
        self.cache.flush()
        for pool in self.cache.statistics():
            assert pool.free + pool.reserved == pool.total

    def _pick(self, which: int) -> CacheRequest:
        return self.running[which % len(self.running)]

    def _commit(self, request: CacheRequest, share: int) -> None:
        holding = self._holding(request)
        more = (holding.kv_allocated_len - holding.kv_committed_len) * share // 100
        self.cache.commit(request, holding.kv_committed_len + more)

    def _twin_publishes(self, request: CacheRequest, upto: int) -> None:
        holding, size = self._holding(request), self.twin.page_size
        lists = [pages.pages.tolist() for pages in holding.lists]
        first, end = holding.cache_protected_len // size, min(holding.kv_committed_len, upto) // size
        swa = lists[Pool.SWA] if self.twin.window else []
        self.twin.publish(request.key.namespace, request.known.tolist(), lists[Pool.FULL], swa, first, end)

    def _lease(self, request: CacheRequest) -> tuple[Prefix, int]:
        holding = self._holding(request)
        lease = holding.lease
        assert isinstance(lease, Lease)
        tokens = tuple(request.known[: holding.cache_protected_len].tolist())
        assert lease.node.end * self.twin.page_size == holding.cache_protected_len
        return (request.key.namespace, tokens), lease.window_from

    def _holding(self, request: CacheRequest) -> Holding:
        assert request.holding is not None
        return request.holding


TestRadixAgainstTwin = RadixMachine.TestCase
TestRadixAgainstTwin.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
