"""Runs step plans on a back end. It never allocates, frees or chooses: a plan in, samples out.

    overlap off   launch n ─ wait n ─ ...      `wait` runs the step, on the thread that calls it
    overlap on    launch n+1 ─ wait n ─ ...    one thread runs the steps, in launch order; the native core releases the
                                               GIL, so whoever launched has Python to itself meanwhile

A fault comes out of `wait`, and nothing launched after it runs.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from sojourn.backends.protocol import Backend
from sojourn.core.clock import Clock
from sojourn.core.errors import law
from sojourn.core.record import record
from sojourn.core.step import StepPlan, StepResult
from sojourn.runner.inputs import InputBuilder
from sojourn.runner.outputs import Samples, samples_of
from sojourn.runner.resolve import Resolver
from sojourn.spec.protocol import Drafter, NoDrafter


@record(eq=False)
class StepHandle:
    """A launched step. `wait` blocks until it has run and gives its result, or raises what stopped it. Called once."""

    wait: Callable[[], StepResult]


class Runner:
    """Without an executor a step runs when it is waited for, and no plan may take what an unsettled one accepts.

    The executor runs one step at a time, in order, and is the runner's from here on; a drafter is called by it only.
    """

    def __init__(
        self, backend: Backend, clock: Clock, *, drafter: Drafter | None = None, executor: Executor | None = None
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._inputs = InputBuilder()
        self._executor = executor
        needs_resolving = executor is not None or drafter is not None
        self._resolver = Resolver(drafter or NoDrafter()) if needs_resolving else None
        self._has_failed = False

    def launch(self, plan: StepPlan) -> StepHandle:
        """Run the step, at once or when it is waited for; its plan has at least one work."""
        law(len(plan.work) > 0, "step %d is empty", plan.step)
        if self._executor is None:
            return StepHandle(partial(self._run, plan))
        return StepHandle(self._executor.submit(self._run, plan).result)

    def close(self) -> None:
        """Wait for the step that runs; those behind it never do. Nothing is launched any more. May be called twice."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    # -- where the steps run

    def _run(self, plan: StepPlan) -> StepResult:
        law(not self._has_failed, "step %d follows one that failed", plan.step)
        self._has_failed = True
        result = self._plain(plan) if self._resolver is None else self._resolved(plan, self._resolver)
        self._has_failed = False
        return result

    def _plain(self, plan: StepPlan) -> StepResult:
        """Every work is as planned."""
        began_at = self._clock()
        for work in plan.work:
            if work.takes_previous or work.drafts_max:
                law(False, "step %d has works to be resolved", plan.step)
        batch = self._inputs.build(plan.work)
        samples, known = samples_of(plan.work, self._backend.step(batch))
        return StepResult(plan.step, samples, known, (), len(batch.tokens), self._clock() - began_at)

    def _resolved(self, plan: StepPlan, resolver: Resolver) -> StepResult:
        began_at = self._clock()
        works = resolver.resolve(plan)
        running = [work for work in works if work.tokens]
        num_rows = 0
        drawn: Samples = ((),) * len(works)
        known: Samples = ()
        if running:
            batch = self._inputs.build(running)
            num_rows = len(batch.tokens)
            output = self._backend.step(batch)
            drawn, known = samples_of(works, output)
        samples, spans = resolver.accepted(works, drawn)
        draft_lens = resolver.draft_lens(works)
        return StepResult(plan.step, samples, known, spans, num_rows, self._clock() - began_at, draft_lens)
