"""Log-probabilities in answers: every one says all so far, whatever was put into words before."""

import msgspec
import pytest
from tests.support.text import tiny_tokenizer

from sojourn.api.native.answers import Scores
from sojourn.api.native.job import Logprobs
from sojourn.core.step import Sample

PROMPT = [3, 4, 5, 6]
KNOWN = [Sample(5, -0.5, ((5, -0.5), (9, -2.0))), Sample(6, -1.5, ((7, -0.25), (6, -1.5)))]
SAID = [Sample(8, -1.0, ((8, -1.0), (2, -3.0))), Sample(9, -2.0, ((4, -0.125), (9, -2.0))), Sample(2, None, ())]


@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("with_text", [True, False])
def test_each_answer_says_all_so_far(top: int, with_text: bool) -> None:
    tokenizer = tiny_tokenizer()
    scores = Scores(Logprobs(top, with_text, 1), PROMPT, tokenizer)
    scores.tell_prompt(KNOWN)
    assert scores.has_prompt

    def shown(token: int, logprob: float | None) -> list[object]:
        return [logprob, token, tokenizer.decode([token], skip_special=False) if with_text else None]

    for count in (0, 1, 1, 3):
        expected: dict[str, object] = {
            "input_token_logprobs": [shown(4, None), *(shown(one.token, one.logprob) for one in KNOWN)],
            "output_token_logprobs": [shown(one.token, one.logprob) for one in SAID[:count]],
        }
        if top:
            expected["input_top_logprobs"] = [None, *([shown(*likely) for likely in one.top] for one in KNOWN)]
            expected["output_top_logprobs"] = [[shown(*likely) for likely in one.top] for one in SAID[:count]]
        assert msgspec.json.decode(msgspec.json.encode(scores.so_far(SAID[:count]))) == expected
