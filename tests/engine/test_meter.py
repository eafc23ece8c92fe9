"""Steps in buckets: the edges, the phases, what is above every bound."""

import pytest

from sojourn.core.ids import SeqId, StepId
from sojourn.core.step import StepPlan, Work
from sojourn.engine.meter import SECONDS, StepMeter, phase_of


@pytest.mark.parametrize(
    ("sizes", "phase"),
    [([1], "decode"), ([0, 1], "decode"), ([7], "prefill"), ([4, 9], "prefill"), ([1, 4], "mixed"), ([4, 0], "mixed")],
)
def test_a_step_has_a_phase(sizes: list[int], phase: str) -> None:
    works = [Work(SeqId(seq), 0, (7,) * size) for seq, size in enumerate(sizes)]
    assert phase_of(works) == phase


def test_a_value_is_counted_in_the_first_bucket_that_holds_it() -> None:
    meter = StepMeter()
    plan = StepPlan(StepId(1), (Work(SeqId(0), 0, (1, 2, 3), ()),))
    for seconds in (SECONDS[3], SECONDS[3] * 1.01, SECONDS[-1] * 10):
        meter.count(plan, 3, seconds)
    prefill = meter.statistics()[0]
    assert prefill.phase == "prefill"
    assert [index for index, count in enumerate(prefill.seconds.counts) if count] == [3, 4, len(SECONDS)]
    assert prefill.seconds.total == pytest.approx(SECONDS[3] * 2.01 + SECONDS[-1] * 10)
    assert prefill.tokens.total == 9
