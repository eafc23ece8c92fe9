"""The draft model's pool is counted like the others: page by page, from its owners' side."""

from collections.abc import Callable

import numpy as np
import pytest

from sojourn.audit.census import census
from sojourn.audit.policy import MemCheck, StrictMemCheck
from sojourn.audit.report import report
from sojourn.audit.writes import WriteCheck
from sojourn.cache.drafts import DraftPool, draft_book
from sojourn.cache.none import NoneCache
from sojourn.cache.protocol import CacheKey, CacheRequest, Outcome, Verdict
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import PageId, RequestId, StepId
from sojourn.core.step import Pool, SamplingParams
from sojourn.pages.holding import Holding, HoldingBook
from sojourn.pages.ledger import PageOwnerError
from sojourn.pages.sizing import PoolLayout
from sojourn.scheduler.flight import Launched
from sojourn.scheduler.request import StopConditions, make_request
from sojourn.sessions.slots import SessionAwareCache

SIZE = 4


class Rig:
    """One running turn, one idle session, and something behind the fence, all with draft KV."""

    def __init__(self) -> None:
        self.book = draft_book(SIZE, 100)
        drafts = DraftPool(self.book)
        self.cache = SessionAwareCache(NoneCache(HoldingBook(PoolLayout(SIZE), (100,))), drafts=drafts)
        idle = self.start("idle", 30)
        self.cache.cache_finished_req(idle, Outcome(Verdict.FINISHED, 0))
        self.running = self.start("running", 40)
        self.cache.launch(StepId(1))
        plain = self.start(None, 20)
        self.cache.cache_finished_req(plain, Outcome(Verdict.ABORTED))

    def start(self, lineage: str | None, length: int) -> CacheRequest:
        tokens = np.zeros(length, dtype=np.int32)
        request = CacheRequest(RequestId(f"r {lineage}"), CacheKey("", lineage), length, tokens, length)
        assert self.cache.admit(request, length)
        self.cache.commit(request, length)
        self.cache.commit_draft(request, length - 1)
        return request

    def idle_draft(self) -> Holding:
        slot = self.cache.slot("idle")
        assert slot is not None
        assert slot.draft is not None
        return slot.draft

    def running_draft(self) -> Holding:
        assert self.running.draft is not None
        return self.running.draft


def test_the_terms_add_up_and_equal_the_statistics() -> None:
    rig = Rig()
    counted = census(rig.cache)
    assert (counted.drafts_running, counted.drafts_idle) == (1, 1)
    pool, statistics = counted.pools[-1], rig.cache.statistics()[-1]
    assert (pool.pool, statistics.pool) == ("DRAFT", Pool.DRAFT)
    terms = dict(pool.terms)
    assert terms == {"ledger": 100 - 18, "tree": 0, "running": 10, "idle": 8}
    assert (statistics.running, statistics.idle, statistics.fenced, statistics.tree) == (10, 8, 5, 0)
    assert sum(terms.values()) == pool.total == statistics.total


def leak(rig: Rig) -> None:
    pages = rig.running_draft().lists[0]
    pages.truncate(pages.size - 1)


def steal(rig: Rig) -> None:
    rig.running_draft().lists[0].pages[-1] = rig.idle_draft().lists[0].pages[-1]


def lose_the_idle_one(rig: Rig) -> None:
    slot = rig.cache.slot("idle")
    assert slot is not None
    slot.draft = None


def forge_the_ledger(rig: Rig) -> None:
    ledger = rig.book.ledgers[0]
    ledger._owner[ledger.free_pages()[0]] = rig.running_draft().account


def give_a_thief_some(rig: Rig) -> None:
    rig.book.ledgers[0].allocate(rig.book.accounts.open("thief"), 1)


def claim_more_than_stands(rig: Rig) -> None:
    slot = rig.cache.slot("idle")
    assert slot is not None
    slot.settled = 3


@pytest.mark.parametrize(
    "fault",
    [leak, steal, lose_the_idle_one, forge_the_ledger, give_a_thief_some, claim_more_than_stands],
    ids=lambda fault: fault.__name__,
)
def test_every_fault_is_found(fault: Callable[[Rig], None]) -> None:
    rig = Rig()
    census(rig.cache)
    fault(rig)
    with pytest.raises(CorruptionError) as caught:
        census(rig.cache)
    assert "pool DRAFT: 100 pages" in report(caught.value, rig.cache, None)


def test_the_report_tells_the_past_of_its_pages() -> None:
    """A page number means nothing without its pool: the other pool has a page of that number, too."""
    rig = Rig()
    page = PageId(int(rig.running_draft().lists[0].pages[-1]))
    with pytest.raises(PageOwnerError) as caught:
        rig.book.ledgers[0].release(np.array([page], dtype=np.int32), rig.idle_draft().account)
    text = report(caught.value, rig.cache, StepId(3))
    assert text.count("page: ") == 1
    assert f"page: DRAFT {page}, owned by running since r running" in text


def test_an_idle_engine_is_counted_when_draft_pages_moved() -> None:
    rig = Rig()
    check = MemCheck(rig.cache, StrictMemCheck.IDLE, lambda: 0.0)
    check.when_idle()
    assert check.checks == 0
    give_a_thief_some(rig)
    with pytest.raises(CorruptionError):
        check.when_idle()


def test_a_step_writes_draft_pages_of_its_own_only() -> None:
    rig = Rig()
    check = WriteCheck(rig.cache.book, rig.book)
    check.check_own(StepId(2), [launched(rig.running, 39)])
    other = rig.start("other", 12)
    check.check_own(StepId(3), [launched(rig.running, 39), launched(other, 11)])
    rig.running_draft().lists[0].pages[-1] = rig.idle_draft().lists[0].pages[-1]
    with pytest.raises(PageOwnerError, match=r"DRAFT page \d+ is idle since r idle .* and would be written by"):
        check.check_own(StepId(4), [launched(rig.running, 39)])
    other.draft = rig.idle_draft()
    rig.running.draft = other.draft
    with pytest.raises(CorruptionError, match="twice"):
        check.check_own(StepId(5), [launched(rig.running, 39), launched(other, 11)])


def launched(cached: CacheRequest, start: int) -> Launched:
    """One decode of it."""
    request = make_request(
        cached.request_id,
        [0],
        key=cached.key,
        sampling=SamplingParams(),
        max_new_tokens=1,
        stop=StopConditions(),
        now=0.0,
    )
    request.cached = cached
    return Launched(request, 1, start, start + 1)
