"""The draft model reads what the target reads, guesses what stands if it is right, and never reads KV of a wrong guess.

Both models are the fake back end here: it refuses a row whose places before it do not continue each other from position 0.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.fake_backend import VOCAB_SIZE, FakeBackend, expected_tokens

from sojourn.backends.protocol import Batch, BatchOutput
from sojourn.core.ids import SeqId
from sojourn.core.step import BegunSequence, Pool, SamplingParams, TableEdit, Work
from sojourn.spec.draft_model import CATCH_UP, EARNED, DraftModel
from sojourn.spec.protocol import DraftAsk

PAGE_SIZE = 4
CONTEXT = 400


class Doubtful(FakeBackend):
    """Says another token at every `wrong_every`-th position; 0: never."""

    wrong_every = 0

    def step(self, batch: Batch) -> BatchOutput:
        output = super().step(batch)
        if batch.sampling is not None and self.wrong_every:
            wrong = batch.sampling.positions % self.wrong_every == 0
            output.tokens[wrong] = (output.tokens[wrong] + 1) % VOCAB_SIZE
        return output


class Target:
    """One sequence as the runner tells of it: chunks of its prompt, then decodes of which every right guess stands."""

    def __init__(
        self, rig: "Rig", seq: int, prompt: Sequence[int], *, pages: int, found: int = 0, read: int = 0
    ) -> None:
        """`found`: tokens whose KV the target has; `read`: those whose the draft model has, in the row's pages already."""
        self.rig, self.seq, self.num_prompt = rig, SeqId(seq), len(prompt)
        self.says = list(prompt) + expected_tokens(prompt, CONTEXT)
        self.known, self.done = len(prompt), found
        first = 1 + 100 * seq
        edit = TableEdit(Pool.DRAFT, 0, np.arange(first, first + pages, dtype=np.int32))
        self.edits: tuple[TableEdit, ...] = (edit,) if pages else ()
        self.begins: BegunSequence | None = BegunSequence(None, np.array(prompt, dtype=np.int32), read)

    def work(self, drafts: int, chunk: int) -> Work:
        tokens = tuple(self.says[self.done : min(self.known, self.done + chunk)])
        is_last = self.done + len(tokens) == self.known
        sampling = SamplingParams() if is_last else None
        edits, begins = self.edits, self.begins
        self.edits, self.begins = (), None
        if begins is not None:
            self.rig.drafter.begin(self.seq, None, begins.tokens)
        most = drafts if len(tokens) == 1 else 0
        return Work(self.seq, self.done, tokens, edits, sampling, drafts_max=most, end_max=CONTEXT, begins=begins)

    def settle(self, work: Work, drafts: tuple[int, ...]) -> int:
        """How many drafts stood."""
        self.done += len(work.tokens)
        if work.sampling is None:
            return 0
        right = 0
        while right < len(drafts) and drafts[right] == self.says[self.known + right]:
            right += 1
        self.rig.drafter.extend(self.seq, self.says[self.known : self.known + right + 1])
        self.known += right + 1
        self.done += right
        return right


class Rig:
    def __init__(self, wrong_every: int = 0, *, context: int = CONTEXT, window: int = 0) -> None:
        self.backend = Doubtful(page_size=PAGE_SIZE, totals=(400,) * (2 if window else 1), window=window)
        self.backend.wrong_every = wrong_every
        self.drafter = DraftModel(
            self.backend, page_size=PAGE_SIZE, context_length=context, num_pools=2 if window else 1
        )

    def step(self, targets: Sequence[Target], drafts: int = 4, chunk: int = 32) -> list[tuple[tuple[int, ...], int]]:
        """One step of all: what was guessed for each, and how much of it stood."""
        works = [target.work(drafts, chunk) for target in targets]
        self.drafter.observe(works)
        asks = [DraftAsk(work.seq, work.drafts_max) for work in works if work.drafts_max]
        guesses = dict(zip([ask.seq for ask in asks], self.drafter.propose(asks), strict=True))
        stood = []
        for target, work in zip(targets, works, strict=True):
            guess = guesses.get(work.seq, ())
            stood.append((guess, target.settle(work, guess)))
        (*kv_lens,) = self.drafter.kv_lens(works)
        assert all(kv_len < target.known for kv_len, target in zip(kv_lens, targets, strict=True))
        return stood

    def kv_len(self, target: Target) -> int:
        return self.drafter.kv_lens([Work(target.seq, 0, ())])[0]


@pytest.mark.parametrize("window", [0, 5])
def test_a_model_that_says_the_same_is_always_right(window: int) -> None:
    rig = Rig(window=window)
    target = Target(rig, 0, list(range(70)), pages=90)
    for _ in range(3):
        assert rig.step([target]) == [((), 0)], "the prompt is read by chunks"
    rows = rig.backend.rows
    assert rows == 69, "all but the last token of the prompt, once"
    for _ in range(20):
        ((guess, right),) = rig.step([target])
        assert right == len(guess) == 4
    # The last guess of a step is read with the target's own token after it, the others are read already.
    assert rig.backend.rows == rows + 20 * (4 + 1)


@pytest.mark.parametrize("wrong_every", [1, 2, 3, 5])
@pytest.mark.parametrize("drafts", [1, 2, 7])
def test_wrong_guesses_leave_nothing_behind(wrong_every: int, drafts: int) -> None:
    """The back end would refuse a row that reads KV of a token that does not stand."""
    rig = Rig(wrong_every, window=3)
    targets = [Target(rig, 0, list(range(9)), pages=60), Target(rig, 1, list(range(3, 40)), pages=60)]
    for _ in range(20):
        for target, (guess, right) in zip(targets, rig.step(targets, drafts, chunk=5), strict=True):
            if not guess:
                continue
            first = target.known - right - 1
            wrong = [index for index in range(len(guess)) if (first + index) % wrong_every == 0]
            assert right == (wrong[0] if wrong else len(guess)), "it is right up to the first position where it is not"
            assert rig.kv_len(target) == target.known - 1 - (right == len(guess)), "what stands was read once"


def test_sequences_guess_together() -> None:
    rig = Rig()
    targets = [Target(rig, seq, [seq, 2, 3], pages=20) for seq in range(3)]
    rig.step(targets)
    steps = rig.backend.steps
    assert all(len(guess) == 5 for guess, _ in rig.step(targets, drafts=5))
    assert rig.backend.steps == steps + 5, "one small step of the model for each guess, whoever asks"


def test_a_found_prefix_is_read_later_and_no_faster_than_the_target() -> None:
    rig = Rig()
    prompt = [token % VOCAB_SIZE for token in range(200)]
    target = Target(rig, 0, prompt, pages=90, found=199)
    said = 0
    while not rig.backend.steps:
        assert rig.step([target]) == [((), 0)]
        said += 1
    assert said - 1 == 200 // (EARNED - 1), "a short answer never pays for it"
    silent = 1
    while not rig.step([target])[0][0]:
        silent += 1
        assert rig.backend.row_counts[-1] <= CATCH_UP
    assert rig.backend.rows >= 199
    assert silent == (199 + said) // CATCH_UP - 1
    assert rig.step([target])[0][1] == 4


def test_what_follows_a_found_prefix_is_not_read_beside_the_target() -> None:
    """It would still be behind after it: each request on a shared prefix would pay, and have no guesses for it."""
    rig = Rig()
    prompt = [token % VOCAB_SIZE for token in range(120)]
    far, near = Target(rig, 0, prompt, pages=40, found=90), Target(rig, 1, prompt, pages=40, found=40)
    assert rig.step([far, near]) == [((), 0)] * 2
    assert (rig.kv_len(far), rig.kv_len(near)) == (0, CATCH_UP)


def test_a_sequence_nobody_asks_about_costs_nothing() -> None:
    rig = Rig()
    target = Target(rig, 0, list(range(20)), pages=90)
    rig.step([target])
    rows = rig.backend.rows
    for _ in range(CATCH_UP + 10):
        rig.step([target], drafts=0)
    assert rig.backend.rows == rows
    rig.step([target])
    assert rig.step([target])[0][1] == 4, "and it catches up when somebody does"


@pytest.mark.parametrize("context", [CONTEXT, 30])
def test_it_guesses_as_far_as_there_are_places(context: int) -> None:
    """A write past its pages would be one to the null page, and the back end refuses that."""
    rig = Rig(context=context)
    target = Target(rig, 0, list(range(21)), pages=8 if context > 32 else 90)
    places = min(context, 32)
    rig.step([target])
    lengths = []
    for _ in range(12):
        known = target.known
        ((guess, right),) = rig.step([target], drafts=4)
        assert len(guess) == right == max(0, min(4, places - known + 1))
        lengths.append(len(guess))
    assert {4, 0} <= set(lengths)
    target.edits = (TableEdit(Pool.DRAFT, 8, np.arange(90, 99, dtype=np.int32)),)
    rig.step([target])
    assert bool(rig.step([target])[0][0]) == (context > 32), "more pages, and it goes on, up to its own context"


def test_without_pages_it_is_silent() -> None:
    rig = Rig()
    target = Target(rig, 0, list(range(21)), pages=0)
    for _ in range(4):
        assert rig.step([target]) == [((), 0)]
    assert rig.backend.steps == 0


def test_what_was_read_in_an_earlier_run_is_not_read_again() -> None:
    rig = Rig(wrong_every=4)
    first = Target(rig, 0, list(range(30)), pages=40)
    for _ in range(6):
        rig.step([first])
    read, rows = rig.kv_len(first), rig.backend.rows
    rig.drafter.end(first.seq)
    assert rig.drafter.kv_lens([Work(first.seq, 0, ())]) == (0,)
    again = Target(rig, 0, [*first.says[: first.known], 1, 2, 3], pages=40, found=first.known - 1, read=read)
    rig.step([again])
    assert rig.backend.rows == rows + again.num_prompt - 1 - read
    assert rig.step([again])[0][0]


def test_a_prompt_that_was_all_read_still_gets_a_guess() -> None:
    """As after a retraction: the last token is run again, for what follows it."""
    rig = Rig()
    first = Target(rig, 0, list(range(30)), pages=40)
    rig.step([first])
    rig.step([first])
    rig.drafter.end(first.seq)
    again = Target(rig, 0, first.says[: first.known - 3], pages=40, found=first.known - 4, read=first.known - 3)
    assert rig.step([again])[0][1] == 4


def test_it_says_nothing_of_sequences_it_was_not_told_of() -> None:
    rig = Rig()
    assert rig.drafter.propose([DraftAsk(SeqId(3), 4)]) == [()]
    rig.drafter.extend(SeqId(3), [1, 2])
    rig.drafter.end(SeqId(3))
    assert rig.drafter.kv_lens([Work(SeqId(3), 0, ())]) == (0,)
