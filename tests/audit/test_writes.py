"""A page has one writer, within a step and over the steps in flight together."""

import pytest

from sojourn.audit.policy import MemCheck, StrictMemCheck
from sojourn.audit.writes import WriteCheck
from sojourn.cache.protocol import CacheRequest, Outcome, Verdict
from sojourn.cache.release import release_kv_cache
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import StepId
from sojourn.core.step import Pool, SamplingParams
from sojourn.pages.ledger import PageOwnerError
from sojourn.scheduler.flight import Launched
from sojourn.scheduler.request import StopConditions, make_request
from tests.support.slots import Rig, holding_of

SIZE = 4


def plain(rig: Rig, length: int) -> CacheRequest:
    request = rig.request(length, lineage=None)
    assert rig.cache.admit(request, length)
    return request


def work(cached: CacheRequest, start: int, end: int) -> Launched:
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
    return Launched(request, 1, start, end)


@pytest.mark.parametrize("window", [0, 16])
def test_own_pages_may_be_written_again_while_a_step_writes_them(window: int) -> None:
    rig = Rig("radix", SIZE, window)
    one, two = plain(rig, 10), plain(rig, 7)
    check = WriteCheck(rig.book)
    check.launch(StepId(1), [work(one, 0, 9), work(two, 0, 7)])
    check.launch(StepId(2), [work(one, 9, 10)])
    check.retire(StepId(1))
    check.retire(StepId(2))


def test_what_the_tree_lends_is_not_written() -> None:
    rig = Rig("radix", SIZE)
    rig.seed_tree(8)
    request = plain(rig, 12)
    assert request.prefix_len == 8
    check = WriteCheck(rig.book)
    check.launch(StepId(1), [work(request, 8, 12)])
    with pytest.raises(PageOwnerError, match=r"is tree .* and would be written by"):
        check.launch(StepId(2), [work(request, 7, 12)])


def test_what_the_window_let_go_is_not_written() -> None:
    rig = Rig("none", SIZE, 8)
    request = plain(rig, 40)
    rig.cache.commit(request, 40)
    assert rig.cache.grow(request, 41)
    with pytest.raises(PageOwnerError, match="page 0 is reserved"):
        WriteCheck(rig.book).launch(StepId(1), [work(request, 20, 41)])


def test_a_sequence_runs_once_in_a_step_and_holds_pages() -> None:
    rig = Rig("none", SIZE)
    request = plain(rig, 10)
    with pytest.raises(CorruptionError, match="twice"):
        WriteCheck(rig.book).launch(StepId(1), [work(request, 0, 4), work(request, 4, 8)])
    release_kv_cache(rig.cache, request, Outcome(Verdict.ABORTED))
    with pytest.raises(CorruptionError, match="holds nothing"):
        WriteCheck(rig.book).launch(StepId(1), [work(request, 0, 4)])


def test_a_page_of_a_step_in_flight_has_no_second_writer() -> None:
    """Nobody told the ledger of the step, so what was given up during it is free too soon."""
    rig = Rig("none", SIZE)
    first = plain(rig, SIZE)
    check = WriteCheck(rig.book)
    check.launch(StepId(1), [work(first, 0, SIZE)])
    pages = holding_of(first).lists[Pool.FULL].pages.tolist()
    release_kv_cache(rig.cache, first, Outcome(Verdict.ABORTED))
    second = plain(rig, SIZE)
    assert holding_of(second).lists[Pool.FULL].pages.tolist() == pages
    with pytest.raises(PageOwnerError, match="in step 1, still in flight"):
        check.launch(StepId(2), [work(second, 0, SIZE)])
    check.retire(StepId(1))
    check.launch(StepId(3), [work(second, 0, SIZE)])


@pytest.mark.parametrize("level", list(StrictMemCheck))
def test_every_level_refuses_a_step_that_writes_what_is_not_its_own(level: StrictMemCheck) -> None:
    rig = Rig("radix", SIZE)
    rig.seed_tree(8)
    request = plain(rig, 12)
    check = MemCheck(rig.cache, level, lambda: 0.0)
    check.before_step(StepId(1), [work(request, 8, 12)])
    check.after_step(StepId(1), is_idle=False)
    for start, end in ((7, 8), (7, 12)):
        with pytest.raises(PageOwnerError, match="is tree"):
            check.before_step(StepId(2), [work(request, start, end)])
    with pytest.raises(CorruptionError, match="twice"):
        check.before_step(StepId(2), [work(request, 8, 9), work(request, 9, 12)])


def test_only_the_strictest_level_compares_steps_in_flight() -> None:
    rig = Rig("none", SIZE)
    checks = {level: MemCheck(rig.cache, level, lambda: 0.0) for level in StrictMemCheck}
    first = plain(rig, SIZE)
    for check in checks.values():
        check.before_step(StepId(1), [work(first, 0, SIZE)])
    release_kv_cache(rig.cache, first, Outcome(Verdict.ABORTED))
    second = [work(plain(rig, SIZE), 0, SIZE)]  # the same page, which no fence kept
    checks[StrictMemCheck.IDLE].before_step(StepId(2), second)
    checks[StrictMemCheck.PERIODIC].before_step(StepId(2), second)
    with pytest.raises(PageOwnerError, match="still in flight"):
        checks[StrictMemCheck.EVERY_STEP].before_step(StepId(2), second)
