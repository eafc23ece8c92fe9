"""Every option of a turn is checked before anything happens, and the error names option and bound."""

import pytest

from sojourn.api.options import TurnOptions
from sojourn.core.errors import ClientError


@pytest.mark.parametrize(
    ("options", "param", "bound"),
    [
        (TurnOptions(temperature=float("nan")), "temperature", "from 0"),
        (TurnOptions(temperature=float("inf")), "temperature", "from 0"),
        (TurnOptions(temperature=-0.1), "temperature", "from 0"),
        (TurnOptions(temperature="hot"), "temperature", "from 0"),  # type: ignore[arg-type]
        (TurnOptions(temperature=10**400), "temperature", "to 100"),
        (TurnOptions(top_p=0.0), "top_p", "from 1e-06 to 1"),
        (TurnOptions(top_p=1e-46), "top_p", "from 1e-06 to 1"),
        (TurnOptions(top_p=2.0), "top_p", "from 1e-06 to 1"),
        (TurnOptions(top_k=-1), "top_k", "from 0"),
        (TurnOptions(min_p=1.0), "min_p", "from 0 below 1"),
        (TurnOptions(min_p=1 - 1e-9), "min_p", "below 1"),  # 1 in float32
        (TurnOptions(max_tokens=0), "max_tokens", "from 1"),
        (TurnOptions(max_tokens=1.5), "max_tokens", "from 1"),  # type: ignore[arg-type]
        (TurnOptions(repetition_penalty=0.0), "repetition_penalty", "from 0.01"),
        (TurnOptions(repetition_penalty=1e-39), "repetition_penalty", "from 0.01"),
        (TurnOptions(presence_penalty=3.0), "presence_penalty", "to 2"),
        (TurnOptions(frequency_penalty=-3.0), "frequency_penalty", "from -2"),
        (TurnOptions(stop=[""]), "stop", "1 to 1,000"),
        (TurnOptions(stop=["\ud800"]), "stop", "surrogate"),
        (TurnOptions(stop=""), "stop", "1 to 1,000"),
        (TurnOptions(stop=["x"] * 17), "stop", "at most 16"),
        (TurnOptions(stop=[3]), "stop", "must be text"),  # type: ignore[list-item]
        (TurnOptions(seed=2**64), "seed", "from 0"),
        (TurnOptions(logprobs=21), "logprobs", "to 20"),
        (TurnOptions(logit_bias={100: 1.0}), "logit_bias", "to 99"),
        (TurnOptions(logit_bias={1: 101.0}), "logit_bias", "to 100"),
        (TurnOptions(logit_bias=[5]), "logit_bias", "must map token ids"),  # type: ignore[arg-type]
        (TurnOptions(top_k=10**5000), "top_k", "too many digits"),
        (TurnOptions(ignore_eos="no"), "ignore_eos", "true or false"),  # type: ignore[arg-type]
    ],
)
def test_an_option_out_of_bounds_is_refused(options: TurnOptions, param: str, bound: str) -> None:
    with pytest.raises(ClientError, match=bound) as caught:
        options.check(vocab_size=100)
    assert caught.value.param == param


def test_the_defaults_and_the_edges_are_lawful() -> None:
    TurnOptions().check(vocab_size=100)
    TurnOptions(temperature=0, top_p=1.0, min_p=0.0, max_tokens=1, logprobs=20, logit_bias={99: -100}).check(
        vocab_size=100
    )


def test_a_given_seed_wins_over_the_derived_one() -> None:
    assert TurnOptions(seed=0).sampling(7).seed == 0
    assert TurnOptions().sampling(7).seed == 7


@pytest.mark.parametrize("temperature", [0, 1e-39, 0.000_999])
def test_a_temperature_that_float32_cannot_divide_by_is_greedy(temperature: float) -> None:
    options = TurnOptions(temperature=temperature, top_k=40, top_p=0.5)
    options.check(vocab_size=100)
    assert options.sampling(7).temperature == 0.0
    assert TurnOptions(temperature=0.001).sampling(7).temperature == 0.001
