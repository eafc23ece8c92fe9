"""SmolLM2's four-bit weights guess for the same weights as floats: what they say differs now and then, seldom."""

import pytest

from sojourn.app.draft_side import DraftSide
from sojourn.backends.native import NativeBackend
from sojourn.core.step import Pool, SamplingParams
from sojourn.models.store import LoadedModel
from sojourn.models.tokenizer import Tokenizer
from sojourn.pages.sizing import NUM_RESERVED
from sojourn.sessions.service import TurnParams
from tests.e2e.engines import RealEngine, Shape, run_alone

PAGES = 64
SHAPE = Shape(16, (PAGES, PAGES), 512, 64, 80, 2, "radix", drafts_max=5)
TURNS = ("Write a list of the planets of the solar system.", "Now the same list again, please.")


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=0.3, seed=5)], ids=["greedy", "seeded"]
)
def test_a_model_guesses_what_its_exact_self_says(
    smollm2: LoadedModel, smollm2_f32: LoadedModel, sampling: SamplingParams
) -> None:
    """The census is taken after every step."""
    tokenizer = Tokenizer(smollm2.tokenizer_json, smollm2.text)
    backend = NativeBackend(
        smollm2.packed, page_size=16, num_pages=(PAGES + NUM_RESERVED, 1), kv_dtype="f16", threads=1, seqs_max=2
    )
    engine = RealEngine(smollm2_f32, SHAPE, draft=DraftSide(smollm2, backend, 16, PAGES + NUM_RESERVED))
    session_id = engine.service.open()
    history: list[int] = []
    try:
        for said in TURNS:
            new = tokenizer.encode(f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n")
            params = TurnParams(sampling=sampling, max_new_tokens=40, ignore_eos=True)
            heard = engine.listen(engine.service.start_turn(session_id, new, params))
            engine.run()
            samples, _ = run_alone(smollm2_f32, SHAPE, [*history, *new], params)
            assert heard.samples == samples
            history += [*new, *heard.tokens]
            own, _ = engine.service.pages_by_pool(session_id)[Pool.DRAFT]
            assert (len(history) - 6) // 16 <= own <= -(-len(history) // 16)
        told = engine.scheduler.statistics()
        assert told.accepted > 0.6 * told.drafted, told
        assert told.accepted > 40
    finally:
        engine.close()
