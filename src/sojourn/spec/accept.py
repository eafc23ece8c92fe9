"""Which drafts stand. The target draws its own token at every place, with the number of that (seed, position).

A draft is kept while it equals that token, so the tokens are those of a run without drafts, and so is their distribution.

    rows       known   d1    d2    d3
    samples      s0    s1    s2    s3       d1 = s0, d2 = s1, d3 other than s2: s0 s1 s2 stand, s3 followed a wrong token
"""

from collections.abc import Sequence

from sojourn.core.step import Sample


def num_accepted(drafts: Sequence[int], samples: Sequence[Sample]) -> int:
    """How many of `drafts` stand; `samples[i]` is the target's own token in the place of draft i."""
    for count, (draft, sample) in enumerate(zip(drafts, samples, strict=False)):
        if draft != sample.token:
            return count
    return len(drafts)


def accept(drafts: Sequence[int], samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The samples that stand: one for each accepted draft, and the target's token after the last of them."""
    return samples[: num_accepted(drafts, samples) + 1]
