"""Plans become the back end's arrays."""

import numpy as np

from sojourn.core.ids import SeqId
from sojourn.core.step import KnownRows, Pool, SamplingParams, TableEdit, Work
from sojourn.runner.inputs import InputBuilder

GREEDY = SamplingParams()
WARM = SamplingParams(
    temperature=0.5,
    top_k=4,
    top_p=0.9,
    min_p=0.1,
    presence_penalty=0.25,
    frequency_penalty=0.5,
    repetition_penalty=1.5,
    logit_bias=((3, 1.0), (9, -2.0)),
    seed=-1,
    num_logprobs=2,
)


def history(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, dtype=np.int32)


def test_a_ragged_batch() -> None:
    edits = (
        TableEdit(Pool.FULL, 2, history(7, 8)),
        TableEdit(Pool.SWA, 3, history(5)),
    )
    works = (
        Work(SeqId(4), 10, (1, 2, 3)),
        Work(SeqId(0), 33, (6,), edits, GREEDY),
        Work(SeqId(2), 5, (7, 8), (TableEdit(Pool.FULL, 0, history(9)),), GREEDY),
    )
    batch = InputBuilder().build(works)
    assert batch.tokens.tolist() == [1, 2, 3, 6, 7, 8]
    assert batch.seqs.tolist() == [4, 0, 2]
    assert batch.starts.tolist() == [10, 33, 5]
    assert batch.lengths.tolist() == [3, 1, 2]
    assert batch.table_edits.tolist() == [[0, 0, 2, 7], [0, 0, 3, 8], [0, 1, 3, 5], [2, 0, 0, 9]]
    assert batch.logit_rows.tolist() == [3, 5]
    assert batch.sampling is not None
    assert batch.sampling.positions.tolist() == [34, 7]
    assert batch.sampling.history_offsets.tolist() == [0, 0, 0]
    assert batch.sampling.num_logprobs == -1


def test_without_a_sampled_row_there_is_no_sampling() -> None:
    batch = InputBuilder().build([Work(SeqId(0), 0, (1, 2))])
    assert batch.sampling is None
    assert batch.logit_rows.tolist() == []
    assert batch.table_edits.shape == (0, 4)


def test_the_columns_of_the_parameters() -> None:
    works = [
        Work(SeqId(0), 1, (6,), (), GREEDY),
        Work(SeqId(1), 3, (7,), (), WARM, 0, history(5, 6, 8, 7), 3),
    ]
    sampling = InputBuilder().build(works).sampling
    assert sampling is not None
    assert sampling.temperature.tolist() == [0.0, 0.5]
    assert sampling.top_k.tolist() == [0, 4]
    assert np.allclose(sampling.top_p, [1.0, 0.9])
    assert np.allclose(sampling.min_p, [0.0, 0.1])
    assert sampling.presence_penalty.tolist() == [0.0, 0.25]
    assert sampling.frequency_penalty.tolist() == [0.0, 0.5]
    assert sampling.repetition_penalty.tolist() == [1.0, 1.5]
    assert sampling.seeds.tolist() == [0, (1 << 64) - 1]
    assert sampling.bias_offsets.tolist() == [0, 0, 2]
    assert sampling.bias_ids.tolist() == [3, 9]
    assert sampling.bias_values.tolist() == [1.0, -2.0]
    assert sampling.history_offsets.tolist() == [0, 0, 4]
    assert sampling.history.tolist() == [5, 6, 8, 7]
    assert sampling.history_prompt.tolist() == [0, 3]
    assert sampling.num_logprobs == 2


def test_drafts_are_rows_of_their_own_each_with_what_is_before_it() -> None:
    works = [Work(SeqId(0), 3, (7, 20, 21), (), WARM, 2, history(5, 6, 8, 7), 3)]
    batch = InputBuilder().build(works)
    assert batch.logit_rows.tolist() == [0, 1, 2]
    assert batch.sampling is not None
    assert batch.sampling.positions.tolist() == [4, 5, 6]
    assert batch.sampling.history_offsets.tolist() == [0, 4, 9, 15]
    assert batch.sampling.history.tolist() == [5, 6, 8, 7, 5, 6, 8, 7, 20, 5, 6, 8, 7, 20, 21]


def test_known_rows_have_neutral_parameters_and_come_before_the_sampled_ones() -> None:
    works = [
        Work(SeqId(0), 10, (1, 2, 3), known=KnownRows(1, (3, 4), num_logprobs=5)),
        Work(SeqId(1), 3, (6, 7), (), WARM, 0, history(5, 6, 8, 6, 7), 5, KnownRows(0, (7,))),
    ]
    batch = InputBuilder().build(works)
    assert batch.logit_rows.tolist() == [1, 2, 3, 4]
    sampling = batch.sampling
    assert sampling is not None
    assert sampling.known.tolist() == [3, 4, 7, -1]
    assert sampling.positions.tolist() == [12, 13, 4, 5]
    assert sampling.temperature.tolist() == [0.0, 0.0, 0.0, 0.5]
    assert sampling.bias_offsets.tolist() == [0, 0, 0, 0, 2]
    assert sampling.history_offsets.tolist() == [0, 0, 0, 0, 5]
    assert sampling.history_prompt.tolist() == [0, 0, 0, 5]
    assert sampling.num_logprobs == 5


def test_columns_are_kept_for_the_same_rows_only() -> None:
    builder = InputBuilder()

    def temperatures(*params: SamplingParams) -> list[float]:
        sampling = builder.build([Work(SeqId(i), 5, (1,), (), p) for i, p in enumerate(params)]).sampling
        assert sampling is not None
        return [float(value) for value in sampling.temperature]

    assert temperatures(GREEDY, WARM) == [0.0, 0.5]
    assert temperatures(GREEDY, WARM) == [0.0, 0.5]
    assert temperatures(WARM, GREEDY) == [0.5, 0.0]
    assert temperatures(WARM) == [0.5]
