"""A step's output, work by work. Knows shapes only."""

from collections.abc import Sequence

from sojourn.backends.protocol import BatchOutput
from sojourn.core.errors import law
from sojourn.core.step import Sample, Work

Samples = tuple[tuple[Sample, ...], ...]  # per work, in the plan's order


def samples_of(works: Sequence[Work], output: BatchOutput) -> tuple[Samples, Samples]:
    """The sampled and the known rows of each work. Log-probabilities only as far as its parameters ask."""
    tokens: list[int] = output.tokens.tolist()
    samples: list[tuple[Sample, ...]] = []
    known: list[tuple[Sample, ...]] = []
    row = 0
    for work in works:
        first = row
        if work.known is not None:
            row += len(work.known.tokens)
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
    return tuple(samples), tuple(known)


def _with_logprobs(output: BatchOutput, token: int, row: int, wanted: int) -> Sample:
    ids: list[int] = output.top_ids[row, :wanted].tolist()
    values: list[float] = output.top_logprobs[row, :wanted].tolist()
    return Sample(token, float(output.logprobs[row]), tuple(zip(ids, values, strict=True)))
