"""The census finds what a broken book would hide, and the report tells the page's past."""

from collections.abc import Callable

import numpy as np
import pytest

from sojourn.audit.census import census
from sojourn.audit.policy import MemCheck, StrictMemCheck
from sojourn.audit.report import report
from sojourn.cache.protocol import CacheRequest, Outcome, Verdict
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import PageId, StepId
from sojourn.core.step import Pool
from sojourn.pages.ledger import PageOwnerError
from tests.support.slots import Rig, holding_of


def busy(kind: str = "radix", size: int = 4) -> tuple[Rig, CacheRequest]:
    """One running turn, one idle session, something in the tree and something behind the fence."""
    rig = Rig(kind, size, window=16, publishes=True)
    rig.seed_tree(32)
    first = rig.request(50, lineage="other")
    assert rig.cache.admit(first, 50)
    rig.cache.commit(first, 50)
    rig.cache.cache_finished_req(first, Outcome(Verdict.FINISHED, 0))
    second = rig.request(40)
    assert rig.cache.admit(second, 60)
    rig.cache.commit(second, 40)
    rig.cache.launch(StepId(1))
    plain = rig.request(20, lineage=None)
    assert rig.cache.admit(plain, 20)
    rig.cache.cache_finished_req(plain, Outcome(Verdict.ABORTED))
    return rig, second


@pytest.mark.parametrize("kind", ["radix", "none"])
def test_the_terms_add_up_and_equal_the_statistics(kind: str) -> None:
    rig, _ = busy(kind)
    counted = census(rig.cache)
    assert (counted.holdings_running, counted.holdings_idle) == (1, 1)
    for pool, statistics in zip(counted.pools, rig.cache.statistics(), strict=True):
        terms = dict(pool.terms)
        assert sum(terms.values()) == pool.total == statistics.total
        assert terms["ledger"] == statistics.free + statistics.fenced + statistics.reserved
        assert (terms["tree"], terms["running"], terms["idle"]) == (
            statistics.tree,
            statistics.running,
            statistics.idle,
        )
        assert terms["running"] > 0
        assert terms["idle"] > 0
        assert (terms["tree"] > 0) == (kind == "radix")
        assert statistics.fenced > 0


def leak(rig: Rig, request: CacheRequest) -> None:
    """A page leaves the list, not the account."""
    pages = holding_of(request).lists[Pool.FULL]
    pages.truncate(pages.size - 1)


def alias(rig: Rig, request: CacheRequest) -> None:
    """One page at two places."""
    pages = holding_of(request).lists[Pool.FULL].pages
    pages[-1] = pages[-2]


def steal(rig: Rig, request: CacheRequest) -> None:
    """A page of the idle session in the running one's list."""
    slot = rig.cache.slot("other")
    assert slot is not None
    assert slot.holding is not None
    holding_of(request).lists[Pool.SWA].pages[-1] = slot.holding.lists[Pool.SWA].pages[-1]


def lose_lease(rig: Rig, request: CacheRequest) -> None:
    assert rig.radix is not None
    rig.radix.tree.take_back(holding_of(request).lease)  # type: ignore[arg-type]


def lose_holding(rig: Rig, request: CacheRequest) -> None:
    slot = rig.cache.slot("other")
    assert slot is not None
    slot.holding = None


def miscount_tree(rig: Rig, request: CacheRequest) -> None:
    assert rig.radix is not None
    rig.radix.tree.num_guarded_pages += 1


def forge_ledger(rig: Rig, request: CacheRequest) -> None:
    ledger = rig.book.ledgers[Pool.FULL]
    ledger._owner[ledger.free_pages()[0]] = holding_of(request).account


def shorten_free_list(rig: Rig, request: CacheRequest) -> None:
    rig.book.ledgers[Pool.SWA]._num_free -= 1


@pytest.mark.parametrize(
    "fault",
    [leak, alias, steal, lose_lease, lose_holding, miscount_tree, forge_ledger, shorten_free_list],
    ids=lambda fault: fault.__name__,
)
def test_every_fault_is_found(fault: Callable[[Rig, CacheRequest], None]) -> None:
    rig, request = busy()
    census(rig.cache)
    fault(rig, request)
    with pytest.raises(CorruptionError) as caught:
        census(rig.cache)
    assert "\ncache: num_nodes" in report(caught.value, rig.cache, None), "a broken book is reported in full"


def test_the_report_names_page_parties_step_and_the_pages_past() -> None:
    rig, request = busy()
    holding = holding_of(request)
    page = PageId(int(holding.lists[Pool.FULL].pages[-1]))
    slot = rig.cache.slot("other")
    assert slot is not None
    assert slot.holding is not None
    with pytest.raises(PageOwnerError) as caught:
        rig.book.ledgers[Pool.FULL].release(np.array([page], dtype=np.int32), slot.holding.account)
    text = report(caught.value, rig.cache, StepId(17))
    thief, owner = f"{slot.holding.label} #{slot.holding.account}", f"{holding.label} #{holding.account}"
    assert f"FULL page {page}: {thief} gives it to fenced #2, but {owner} owns it" in text
    assert "step: 17" in text
    assert f"page: FULL {page}, owned by {owner}" in text
    assert f"free #0 -> {owner}" in text
    assert "pool SWA" in text
    assert f"label='{holding.label}'" in text
    held = rig.cache.session_held_tokens()
    assert held > 0
    assert f"session_held_tokens {held}, session_held_swa_tokens {rig.cache.session_held_swa_tokens()}" in text
    assert "session_held_req_count 1" in text
    assert rig.radix is not None
    assert f"num_nodes {rig.radix.tree_statistics().num_nodes}" in text
    last = rig.book.ledgers[Pool.SWA].statistics().moves
    assert f"  move {last}, after step" in text


def test_the_report_survives_a_broken_book() -> None:
    rig, request = busy()
    forge_ledger(rig, request)
    with pytest.raises(CorruptionError) as caught:
        census(rig.cache)
    assert "is claimed by free #0, but" in report(caught.value, rig.cache, None)


class Hand:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("level", "busy_soon", "busy_later"),
    [(StrictMemCheck.IDLE, 0, 0), (StrictMemCheck.PERIODIC, 0, 1), (StrictMemCheck.EVERY_STEP, 1, 1)],
)
def test_levels(level: StrictMemCheck, busy_soon: int, busy_later: int) -> None:
    rig, clock = Rig("radix", 4), Hand()
    check = MemCheck(rig.cache, level, clock, every_s=5.0)
    check.after_step(StepId(1), is_idle=False)
    assert check.checks == busy_soon
    clock.now = 6.0
    check.after_step(StepId(2), is_idle=False)
    assert check.checks == busy_soon + busy_later
    check.after_step(StepId(3), is_idle=False)
    assert check.checks == 2 * busy_soon + busy_later
    check.after_step(StepId(4), is_idle=True)
    assert check.checks == 2 * busy_soon + busy_later + 1
    assert check.last is not None


def test_an_idle_engine_is_counted_once_per_change_of_the_ledgers() -> None:
    rig = Rig("radix", 4)
    check = MemCheck(rig.cache, StrictMemCheck.IDLE, Hand())
    check.when_idle()
    assert check.checks == 0
    request = rig.request(9, lineage=None)
    assert rig.cache.admit(request, 9)
    rig.cache.cache_finished_req(request, Outcome(Verdict.ABORTED))
    for _ in range(3):
        check.when_idle()
    assert check.checks == 1
    rig.book.ledgers[0].allocate(rig.book.accounts.open("thief"), 1)
    with pytest.raises(CorruptionError):
        check.when_idle()
