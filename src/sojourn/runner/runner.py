"""Runs step plans on a back end. It never allocates, frees or chooses: a plan in, samples out.

`launch` and `wait` are two calls, so that the loop may have steps in flight beyond the one it settles. Today `wait` runs
the step on the thread that calls it, so nothing overlaps in time yet: what depends on a step's age is ready for it.
"""

from sojourn.backends.protocol import Backend, Batch, BatchOutput
from sojourn.core.errors import law
from sojourn.core.step import Sample, StepPlan, StepResult
from sojourn.runner.inputs import InputBuilder


class StepHandle:
    """A launched step. `wait` gives its result."""

    def __init__(self, backend: Backend, plan: StepPlan, batch: Batch) -> None:
        self._backend = backend
        self._plan = plan
        self._batch = batch

    def wait(self) -> StepResult:
        """Runs the step on the calling thread; the native core releases the GIL meanwhile. Called once."""
        return result_of(self._plan, self._backend.step(self._batch))


class Runner:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._inputs = InputBuilder()

    def launch(self, plan: StepPlan) -> StepHandle:
        """Prepare the step; its plan has at least one work."""
        law(len(plan.work) > 0, "step %d is empty", plan.step)
        return StepHandle(self._backend, plan, self._inputs.build(plan.work))


def result_of(plan: StepPlan, output: BatchOutput) -> StepResult:
    """The rows of each work, in the plan's order. Log-probabilities only as far as its parameters ask."""
    tokens: list[int] = output.tokens.tolist()
    samples: list[tuple[Sample, ...]] = []
    known: list[tuple[Sample, ...]] = []
    row = 0
    for work in plan.work:
        first = row
        row += 0 if work.known is None else len(work.known.tokens)
        if work.known is not None:
            wanted = work.known.num_logprobs
            scored = [_with_logprobs(output, tokens[index], index, wanted) for index in range(first, row)]
            known += [()] * (len(samples) - len(known)) + [tuple(scored)]
        if work.sampling is None:
            samples.append(())
            continue
        end = row + work.num_drafts + 1
        if work.sampling.num_logprobs is None:
            samples.append(tuple([Sample(token) for token in tokens[row:end]]))
        else:
            wanted = work.sampling.num_logprobs
            samples.append(tuple([_with_logprobs(output, tokens[index], index, wanted) for index in range(row, end)]))
        row = end
    law(row == len(tokens), "%d rows were to be sampled, %d were", row, len(tokens))
    if known:
        known += [()] * (len(samples) - len(known))
    return StepResult(plan.step, tuple(samples), tuple(known))


def _with_logprobs(output: BatchOutput, token: int, row: int, wanted: int) -> Sample:
    ids: list[int] = output.top_ids[row, :wanted].tolist()
    values: list[float] = output.top_logprobs[row, :wanted].tolist()
    return Sample(token, float(output.logprobs[row]), tuple(zip(ids, values, strict=True)))
