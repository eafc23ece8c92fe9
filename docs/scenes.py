"""Short scripts played on the engine's own bookkeeping, with a snapshot after every event. What the figures draw."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sojourn.audit.census import census
from sojourn.cache.protocol import CacheKey, CacheRequest, Outcome, Verdict
from sojourn.cache.radix import RadixCache
from sojourn.core.ids import NULL_PAGE, AccountId, PageId, RequestId, StepId
from sojourn.core.step import Pool
from sojourn.pages.accounts import FENCED, FREE, RESERVED
from sojourn.pages.holding import Holding, HoldingBook
from sojourn.pages.sizing import PoolLayout
from sojourn.sessions.slots import SessionAwareCache

PAGE_SIZE = 4
KINDS = {FREE: "free", RESERVED: "reserved", FENCED: "fenced"}
LENGTH_MAX = 256


@dataclass(frozen=True)
class Strip:
    """One holding: per page index and pool, "lent", "own" or "null"; lengths in tokens."""

    pools: tuple[tuple[str, ...], ...]
    settled: int
    protected: int
    committed: int
    allocated: int
    legal: tuple[int, ...]  # resume points the window law allows


@dataclass(frozen=True)
class Snapshot:
    event: str
    owners: tuple[str, ...]  # of each page of the full pool, by kind
    counts: tuple[tuple[str, int], ...]  # the terms of the identity, full pool
    total: int
    strip: Strip | None  # of session A


class Stage:
    """A session cache over a radix tree, small enough to draw."""

    def __init__(self, pages: int, window: int = 0) -> None:
        layout = PoolLayout(PAGE_SIZE, window)
        self.book = HoldingBook(layout, [pages] * layout.num_pools)
        self.tree = RadixCache(self.book)
        self.cache = SessionAwareCache(self.tree)
        self.snapshots: list[Snapshot] = []
        self._requests = 0

    def request(self, session: str, num_prompt: int) -> CacheRequest:
        """Tokens are one fixed sequence, so what two sessions say is the same as far as both go."""
        self._requests += 1
        tokens = np.arange(LENGTH_MAX, dtype=np.int32)
        return CacheRequest(
            RequestId(f"request {self._requests}"), CacheKey("", session), num_prompt, tokens, num_prompt
        )

    def admit(self, request: CacheRequest, length: int) -> None:
        assert self.cache.admit(request, length), "the stage is too small"

    def compute(self, request: CacheRequest, length: int) -> None:
        assert self.cache.grow(request, length), "the stage is too small"
        self.cache.commit(request, length)

    def generate(self, request: CacheRequest, count: int) -> None:
        """The last token drawn has no KV yet."""
        for _ in range(count):
            request.num_tokens += 1
            self.compute(request, request.num_tokens - 1)

    def finish(self, request: CacheRequest) -> None:
        finished = request.num_tokens - request.num_prompt
        self.cache.cache_finished_req(request, Outcome(Verdict.FINISHED, finished))

    def end(self, request: CacheRequest, verdict: Verdict) -> None:
        self.cache.cache_finished_req(request, Outcome(verdict))

    def note(self, event: str) -> None:
        """Take the picture; the census must agree that every page has one owner."""
        census(self.cache)
        ledger = self.book.ledgers[Pool.FULL]
        owners = tuple(self._kind(ledger.owner(PageId(page))) for page in range(ledger.num_pages))
        pool = self.cache.statistics()[Pool.FULL]
        counts = {
            "free": pool.free, "fenced": pool.fenced, "reserved": pool.reserved,
            "tree": pool.tree, "running": pool.running, "idle": pool.idle,
        }  # fmt: skip
        self.snapshots.append(Snapshot(event, owners, tuple(counts.items()), pool.total, self._strip()))

    def moves(self) -> Counter[tuple[str, str]]:
        """Pages moved from kind to kind, from the ledger's own journal."""
        ledger, total = self.book.ledgers[Pool.FULL], Counter[tuple[str, str]]()
        for move in ledger.moves_since(0):
            total[self._account(move.source), self._account(move.target)] += len(move.pages)
        return total

    def _account(self, account: AccountId) -> str:
        return "tree" if account == self.tree.account else KINDS.get(account, "holding")

    def _kind(self, account: AccountId) -> str:
        if account == self.tree.account or account in KINDS:
            return self._account(account)
        idle = {holding.account for holding in self.cache.idle_holdings()}
        return "idle" if account in idle else "running"

    def _strip(self) -> Strip | None:
        slot = self.cache.slot("A")
        holding = None if slot is None else slot.holding if slot.turn is None else slot.turn.holding
        if slot is None or holding is None:
            return None
        first = holding.cache_protected_len // PAGE_SIZE
        lengths = range(holding.kv_committed_len + 1)
        return Strip(
            tuple(tuple(_cell(holding, pool, index, first) for index in range(holding.num_pages)) for pool in range(len(holding.lists))),
            slot.settled, holding.cache_protected_len, holding.kv_committed_len, holding.kv_allocated_len,
            tuple(length for length in lengths if self.book.is_legal(holding, length)),
        )  # fmt: skip


def _cell(holding: Holding, pool: int, index: int, first_own: int) -> str:
    if holding.lists[pool].pages[index] == NULL_PAGE:
        return "null"
    return "own" if index >= first_own else "lent"


def life_of_pages() -> Stage:
    """Two sessions with a common opening; one is aborted while a step runs, the other is demoted."""
    stage = Stage(pages=16)
    stage.note("an empty pool: page 0 is the null page")
    a = stage.request("A", num_prompt=10)
    stage.admit(a, 10)
    stage.note("A's first turn is admitted: 10 tokens need 3 pages")
    stage.compute(a, 10)
    a.num_tokens += 1
    stage.cache.cache_unfinished_req(a)
    stage.note("its prompt is computed: whole pages are published")
    stage.generate(a, 7)
    stage.note("A answers, 8 tokens in all")
    stage.finish(a)
    stage.note("the turn ends: published, and the slot keeps the tail page")
    b = stage.request("B", num_prompt=14)
    stage.admit(b, 14)
    stage.compute(b, 14)
    stage.note("B begins with the same 12 tokens: it borrows, and owns 1 page")
    stage.cache.launch(StepId(1))
    stage.end(b, Verdict.ABORTED)
    stage.note("B is aborted while a step runs: its page waits behind the fence")
    stage.cache.retire(StepId(1))
    stage.note("the step has retired")
    a = stage.request("A", num_prompt=25)
    stage.admit(a, 25)
    stage.compute(a, 25)
    stage.note("A's second turn resumes: the slot's page is the turn's now")
    a.num_tokens += 1
    stage.generate(a, 4)
    stage.finish(a)
    stage.note("it ends: published, parked")
    stage.cache.demote("A")
    stage.note("pages are short: A is demoted, its whole pages are the tree's")
    stage.tree.make_room((11,))
    stage.note("someone needs 11 pages: the tree gives 3, the oldest tail first")
    stage.cache.launch(StepId(2))
    stage.cache.flush()
    stage.note("everything is flushed while a step runs")
    stage.cache.retire(StepId(2))
    stage.note("the step has retired: free + reserved is the total")
    return stage


def life_of_a_turn() -> Stage:
    """One session's holding through a first turn, an abort, a retraction and a rewind."""
    stage = Stage(pages=24)
    turn = stage.request("A", num_prompt=14)
    stage.admit(turn, 8)
    stage.compute(turn, 8)
    stage.note("turn 1: a chunk of 8 of its 14 tokens is computed")
    stage.compute(turn, 14)
    turn.num_tokens += 1
    stage.cache.cache_unfinished_req(turn)
    stage.note("turn 1: prompt computed, its whole pages published")
    stage.generate(turn, 4)
    assert stage.cache.grow(turn, 26)
    stage.cache.commit(turn, 22)
    turn.num_tokens = 23
    stage.note("turn 1: a round of drafts was committed past the stop")
    stage.cache.cache_finished_req(turn, Outcome(Verdict.FINISHED, 5))
    stage.note("FINISHED after 5: overshoot trimmed, published, parked")
    turn = stage.request("A", num_prompt=27)
    stage.admit(turn, 27)
    stage.note("turn 2 resumes at 18 of 27: one recomputed, the rest new")
    stage.compute(turn, 27)
    turn.num_tokens += 1
    stage.generate(turn, 3)
    stage.note("turn 2: prompt computed, 4 tokens drawn; nothing published")
    stage.end(turn, Verdict.ABORTED)
    stage.note("ABORTED: cut to the settled 19, nothing to compute again")
    turn = stage.request("A", num_prompt=27)
    stage.admit(turn, 27)
    stage.compute(turn, 27)
    turn.num_tokens += 1
    stage.generate(turn, 3)
    stage.note("turn 3: the same again")
    stage.end(turn, Verdict.RETRACTED)
    stage.note("RETRACTED: the tree has its whole pages, the turn waits")
    stage.admit(turn, turn.num_tokens)
    stage.note("admitted again, on what the tree still has")
    stage.compute(turn, turn.num_tokens)
    turn.num_tokens += 1
    stage.finish(turn)
    stage.note("FINISHED: parked at its whole history")
    stage.cache.rewind_session("A", 15)
    stage.note("rewound to 15, below what is lent: the tree has it")
    return stage


def window_law() -> Stage:
    """A session of a model that sees 10 tokens back; pages of 4."""
    stage = Stage(pages=40, window=10)
    turn = stage.request("A", num_prompt=30)
    stage.admit(turn, 30)
    stage.compute(turn, 30)
    turn.num_tokens += 1
    stage.note("turn 1: 30 tokens computed in one chunk")
    stage.generate(turn, 4)
    stage.finish(turn)
    stage.note("it ends at 35: the window before the end stays")
    turn = stage.request("A", num_prompt=39)
    stage.admit(turn, 39)
    stage.compute(turn, 39)
    stage.note("turn 2: 39 tokens; two windows touch")
    turn.num_tokens += 1
    stage.generate(turn, 20)
    stage.note("far ahead: the hole between the two windows is let go")
    stage.end(turn, Verdict.ABORTED)
    stage.note("aborted: resumes at 34 or 35, nothing to compute again")
    stage.cache.rewind_session("A", 20)
    stage.note("rewound to 20: no window of its own there, the tree is asked")
    return stage


SCENES: dict[str, Callable[[], Stage]] = {
    "pages": life_of_pages,
    "turn": life_of_a_turn,
    "window": window_law,
}
