"""Drafts stand while they are what the target draws itself."""

import pytest

from sojourn.core.step import Sample
from sojourn.spec.accept import accept, num_accepted


def samples(*tokens: int) -> tuple[Sample, ...]:
    return tuple(Sample(token) for token in tokens)


@pytest.mark.parametrize(
    ("drafts", "drawn", "stands"),
    [
        ((), (4,), (4,)),
        ((4, 5), (4, 5, 6), (4, 5, 6)),
        ((4, 9), (4, 5, 6), (4, 5)),
        ((9, 5), (4, 5, 6), (4,)),
        ((9, 4), (4, 4, 4), (4,)),  # right again after a wrong one: it followed a wrong token
    ],
)
def test_what_stands(drafts: tuple[int, ...], drawn: tuple[int, ...], stands: tuple[int, ...]) -> None:
    assert accept(drafts, samples(*drawn)) == samples(*stands)
    assert num_accepted(drafts, samples(*drawn)) == len(stands) - 1
