"""Steps run in order, here or on a thread of their own, and what breaks one comes out of `wait`."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, current_thread

import numpy as np
import pytest
from tests.support.fake_backend import FakeBackend, expected_tokens

from sojourn.backends.protocol import Batch, BatchOutput
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import SeqId, StepId
from sojourn.core.step import BegunSequence, Pool, Sample, SamplingParams, Span, StepPlan, TableEdit, Work
from sojourn.runner.runner import Runner
from sojourn.spec.protocol import DraftAsk, NoDrafter

GUARD_S = 60
GREEDY = SamplingParams()
PROMPT = (3, 1, 4, 1, 5)
SAYS = expected_tokens(PROMPT, 12)


def clock() -> float:
    return 0.0


def first_work() -> Work:
    pages = np.arange(1, 5, dtype=np.int32)
    begins = BegunSequence(None, np.array(PROMPT, dtype=np.int32))
    return Work(SeqId(0), 0, PROMPT, (TableEdit(Pool.FULL, 0, pages),), GREEDY, begins=begins)


def ahead(start: int, drafts_max: int = 0, end_max: int = 40) -> Work:
    """The next token, which nobody who plans knows."""
    return Work(SeqId(0), start, (), (), GREEDY, takes_previous=True, drafts_max=drafts_max, end_max=end_max)


class Guesses(NoDrafter):
    """Right for the first `num_right` drafts, then wrong."""

    def __init__(self, num_right: int) -> None:
        self.num_right = num_right
        self.known: list[int] = []
        self.threads: set[str] = set()

    def extend(self, seq: SeqId, tokens: Sequence[int]) -> None:
        self.known += tokens
        self.threads.add(current_thread().name)

    def propose(self, asks: Sequence[DraftAsk]) -> list[tuple[int, ...]]:
        (ask,) = asks
        at = len(self.known)
        right = SAYS[at : at + min(self.num_right, ask.num_max)]
        return [(*right, *[(SAYS[at + len(right)] + 1) % 97] * (ask.num_max - len(right)))]


class Gate(FakeBackend):
    """Its steps wait until they are let through."""

    def __init__(self) -> None:
        super().__init__(page_size=16, totals=[5])
        self.begun, self.opened = Event(), Event()

    def step(self, batch: Batch) -> BatchOutput:
        self.begun.set()
        assert self.opened.wait(GUARD_S)
        return super().step(batch)


def backend() -> FakeBackend:
    return FakeBackend(page_size=16, totals=[5])


def thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="steps")


def test_an_empty_plan_is_not_launched() -> None:
    device = backend()
    with pytest.raises(CorruptionError):
        Runner(device, clock).launch(StepPlan(StepId(1), ()))
    assert device.steps == 0


def test_a_step_runs_while_the_next_is_launched() -> None:
    device = Gate()
    runner = Runner(device, clock, executor=thread())
    first = runner.launch(StepPlan(StepId(1), (first_work(),)))
    assert device.begun.wait(GUARD_S), "nobody waited for it, and it runs"
    second = runner.launch(StepPlan(StepId(2), (ahead(5),)))
    device.opened.set()
    assert first.wait().samples == ((Sample(SAYS[0]),),)
    result = second.wait()
    assert result.samples == ((Sample(SAYS[1]),),)
    assert result.spans == (Span(5, 1),)
    runner.close()


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_drafts_follow_what_the_step_before_accepted(num_right: int) -> None:
    drafter = Guesses(num_right)
    runner = Runner(backend(), clock, drafter=drafter, executor=thread())
    plans = [(first_work(),), (ahead(5, 3),), (ahead(6, 3),)]
    handles = [runner.launch(StepPlan(StepId(step), works)) for step, works in enumerate(plans, 1)]
    results = [handle.wait() for handle in handles]
    spans = [result.spans[0] for result in results]
    assert spans == [Span(0, 5), Span(5, num_right + 1, 3), Span(6 + num_right, num_right + 1, 3)]
    said = [sample.token for result in results for sample in result.samples[0]]
    assert said == SAYS[: len(said)] == drafter.known
    assert [result.num_rows for result in results] == [5, 4, 4]
    runner.close()
    assert drafter.threads == {"steps_0"}


def test_drafts_need_no_overlap() -> None:
    runner = Runner(backend(), clock, drafter=Guesses(2))
    first = runner.launch(StepPlan(StepId(1), (first_work(),))).wait()
    known = Work(SeqId(0), 5, (first.samples[0][0].token,), (), GREEDY, drafts_max=2, end_max=40)
    assert runner.launch(StepPlan(StepId(2), (known,))).wait().spans == (Span(5, 3, 2),)


def test_drafts_and_tokens_end_below_the_bound() -> None:
    device = backend()
    runner = Runner(device, clock, drafter=Guesses(3))
    works = [first_work(), ahead(5, 3, 7), ahead(6, 3, 7)]
    results = [runner.launch(StepPlan(StepId(step), (work,))).wait() for step, work in enumerate(works, 1)]
    assert [result.spans[0] for result in results] == [Span(0, 5), Span(5, 2, 1), Span(7, 0)]
    assert results[2].samples == ((),)
    assert device.steps == 2, "a step with nothing to do does not run"


def test_a_work_that_continues_nothing_is_a_broken_law() -> None:
    runner = Runner(backend(), clock, drafter=NoDrafter())
    runner.launch(StepPlan(StepId(1), (first_work(),))).wait()
    with pytest.raises(CorruptionError, match="row 0"):
        runner.launch(StepPlan(StepId(2), (ahead(5),), ends=(SeqId(0),))).wait()


def test_without_an_executor_or_a_drafter_every_token_is_planned() -> None:
    runner = Runner(backend(), clock)
    runner.launch(StepPlan(StepId(1), (first_work(),))).wait()
    with pytest.raises(CorruptionError, match="resolved"):
        runner.launch(StepPlan(StepId(2), (ahead(5),))).wait()


def test_a_fault_comes_out_of_wait_and_what_is_behind_it_does_not_run() -> None:
    device = backend()
    device.fail_with = CorruptionError("page 7 has two owners")
    runner = Runner(device, clock, executor=thread())
    handles = [runner.launch(StepPlan(StepId(step), (first_work(),))) for step in (1, 2)]
    with pytest.raises(CorruptionError, match="page 7"):
        handles[0].wait()
    device.fail_with = None
    with pytest.raises(CorruptionError, match="step 2 follows"):
        handles[1].wait()
    assert device.steps == 0
    runner.close()
    runner.close()


def test_a_history_planned_early_gets_what_was_accepted_since() -> None:
    """The back end compares each history it is given with the KV before the row."""
    warm = SamplingParams(presence_penalty=0.5)
    known = np.array(PROMPT, dtype=np.int32)

    def work(start: int, tokens: tuple[int, ...], *, edits: tuple[TableEdit, ...] = ()) -> Work:
        later = not tokens
        return Work(
            SeqId(0), start, tokens, edits, warm, 0, known, 5, takes_previous=later, drafts_max=2 * later, end_max=40
        )

    runner = Runner(backend(), clock, drafter=Guesses(2))
    plans = [work(0, PROMPT, edits=first_work().edits), work(5, ()), work(6, ()), work(7, ())]
    results = [runner.launch(StepPlan(StepId(step), (work,))).wait() for step, work in enumerate(plans, 1)]
    said = [sample.token for result in results for sample in result.samples[0]]
    assert said == SAYS[: len(said)]
    assert results[-1].spans == (Span(11, 3, 2),)
