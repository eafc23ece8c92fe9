"""Outputs become samples, work by work."""

import numpy as np
import pytest

from sojourn.backends.protocol import BatchOutput
from sojourn.core.errors import CorruptionError
from sojourn.core.ids import SeqId
from sojourn.core.step import KnownRows, Sample, SamplingParams, Work
from sojourn.runner import outputs


def output(tokens: list[int], num_top: int = 0) -> BatchOutput:
    count = len(tokens)
    return BatchOutput(
        tokens=np.array(tokens, dtype=np.int32),
        logprobs=np.array([-row / 2 for row in range(count)], dtype=np.float32),
        top_ids=np.arange(count * num_top, dtype=np.int32).reshape(count, num_top),
        top_logprobs=np.array([-i / 4 for i in range(count * num_top)], dtype=np.float32).reshape(count, num_top),
        logits=None,
    )


def samples_of(works: tuple[Work, ...], output: BatchOutput) -> tuple[tuple[Sample, ...], ...]:
    samples, known = outputs.samples_of(works, output)
    assert known == ()
    return samples


def test_samples_go_to_the_works_that_asked() -> None:
    works = (
        Work(SeqId(0), 0, (1, 2)),
        Work(SeqId(1), 5, (3,), (), SamplingParams()),
        Work(SeqId(2), 5, (3, 4), (), SamplingParams(), 1),
    )
    assert samples_of(works, output([10, 11, 12])) == ((), (Sample(10),), (Sample(11), Sample(12)))


def test_each_work_gets_the_logprobs_it_asked_for() -> None:
    works = tuple(Work(SeqId(i), 5, (3,), (), SamplingParams(num_logprobs=k)) for i, k in enumerate((None, 0, 1, 2)))
    assert samples_of(works, output([10, 11, 12, 13], num_top=2)) == (
        (Sample(10),),
        (Sample(11, -0.5),),
        (Sample(12, -1.0, ((4, -1.0),)),),
        (Sample(13, -1.5, ((6, -1.5), (7, -1.75))),),
    )


def test_known_rows_come_before_the_sampled_ones_of_their_work() -> None:
    works = (
        Work(SeqId(0), 0, (1, 2)),
        Work(SeqId(1), 5, (3, 4, 6), known=KnownRows(1, (6, 7), num_logprobs=1)),
        Work(SeqId(2), 5, (3, 4), sampling=SamplingParams(), known=KnownRows(0, (4,))),
        Work(SeqId(3), 5, (3,), sampling=SamplingParams()),
    )
    assert outputs.samples_of(works, output([6, 7, 4, 11, 12], num_top=2)) == (
        ((), (), (Sample(11),), (Sample(12),)),
        ((), (Sample(6, 0.0, ((0, 0.0),)), Sample(7, -0.5, ((2, -0.5),))), (Sample(4, -1.0),), ()),
    )


def test_an_output_of_another_size_is_a_broken_law() -> None:
    with pytest.raises(CorruptionError):
        samples_of((Work(SeqId(1), 5, (3,), (), SamplingParams()),), output([10, 11]))
