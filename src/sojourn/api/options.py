"""What a caller may ask of one turn, checked at the door: every bound is stated here and named in the error.

Knows the vocabulary's size and the context's length; knows no model and no engine.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from sojourn.core.bounds import SEED_MAX, check_flag, check_number, check_range, check_text, shown
from sojourn.core.errors import ClientError
from sojourn.core.step import SamplingParams

TEMPERATURE_DEFAULT = 0.7
TOP_P_DEFAULT = 0.95
TEMPERATURE_MAX = 100.0
GREEDY_BELOW = 1e-3  # a temperature this low is greedy: dividing logits by it would leave the range of float32
TOP_P_MIN = 1e-6
REPETITION_MIN = 0.01
STOPS_MAX = 16
STOP_LENGTH_MAX = 1000  # characters
LOGPROBS_MAX = 20
PENALTY_MAX = 2.0
REPETITION_MAX = 10.0
BIAS_MAX = 100.0


class TurnKeywords(TypedDict, total=False):
    """The keyword arguments of a turn; meanings, bounds and defaults are those of `TurnOptions`."""

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Sequence[str]
    logprobs: int | None
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """How a turn is sampled and when it stops.

    max_tokens          1 or more; None: up to the end of the context
    temperature         0 to 100; divides the logits; below 0.001 is greedy
    top_p               0.000001 to 1: the likeliest tokens that add up to this probability
    top_k               0 (off) or more: the k likeliest
    min_p               0 (off) to below 1: tokens at least this likely relative to the likeliest
    repetition_penalty  0.01 to 10; 1 is off; counts prompt and output
    presence_penalty, frequency_penalty   -2 to 2; 0 is off; count the output
    logit_bias          token id to -100 .. 100, added to its logit
    seed                0 to 2**64 - 1; None: derived from the engine's seed, another one for every turn
    stop                up to 16 strings of 1 to 1,000 characters; the text ends before the first that occurs
    logprobs            None, or 0 to 20: log-probabilities of the sampled token and of that many likeliest ones
    ignore_eos          go on past the model's own end-of-sequence tokens
    """

    max_tokens: int | None = None
    temperature: float = TEMPERATURE_DEFAULT
    top_p: float = TOP_P_DEFAULT
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    logprobs: int | None = None
    ignore_eos: bool = False

    @classmethod
    def of(cls, keywords: TurnKeywords, *, vocab_size: int) -> "TurnOptions":
        """The options as given, checked."""
        options = cls(**keywords)
        options.check(vocab_size=vocab_size)
        return options

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def check(self, *, vocab_size: int) -> None:
        """Raise ClientError on the first option out of its bounds; it names option, bound and what was given."""
        check_range("max_tokens", self.max_tokens, 1, 2**31 - 1, optional=True)
        check_number("temperature", self.temperature, 0.0, TEMPERATURE_MAX)
        check_number("top_p", self.top_p, TOP_P_MIN, 1.0)
        check_range("top_k", self.top_k, 0, 2**31 - 1)
        check_number("min_p", self.min_p, 0.0, 1.0, high_open=True)
        check_number("min_p", as_float32(self.min_p), 0.0, 1.0, high_open=True)
        check_number("repetition_penalty", self.repetition_penalty, REPETITION_MIN, REPETITION_MAX)
        check_number("presence_penalty", self.presence_penalty, -PENALTY_MAX, PENALTY_MAX)
        check_number("frequency_penalty", self.frequency_penalty, -PENALTY_MAX, PENALTY_MAX)
        check_range("seed", self.seed, 0, SEED_MAX, optional=True)
        check_range("logprobs", self.logprobs, 0, LOGPROBS_MAX, optional=True)
        check_flag("ignore_eos", self.ignore_eos)
        self._check_stop()
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise ClientError(
                f"logit_bias must map token ids to numbers, got {shown(self.logit_bias)}", param="logit_bias"
            )
        for token, bias in (self.logit_bias or {}).items():
            check_range("logit_bias", token, 0, vocab_size - 1)
            check_number("logit_bias", bias, -BIAS_MAX, BIAS_MAX)

    def _check_stop(self) -> None:
        if not isinstance(self.stop, str | Sequence):
            raise ClientError(f"stop must be a string or a list of strings, got {shown(self.stop)}", param="stop")
        if len(self.stop_strings) > STOPS_MAX:
            raise ClientError(f"at most {STOPS_MAX} stop strings, got {len(self.stop_strings)}", param="stop")
        for text in self.stop_strings:
            check_text("stop", text, 1, STOP_LENGTH_MAX)

    def sampling(self, seed: int) -> SamplingParams:
        """What the engine needs of these options; `seed` stands in where the caller gave none."""
        return SamplingParams(
            temperature=0.0 if self.temperature < GREEDY_BELOW else float(self.temperature),
            top_k=self.top_k,
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            repetition_penalty=float(self.repetition_penalty),
            presence_penalty=float(self.presence_penalty),
            frequency_penalty=float(self.frequency_penalty),
            logit_bias=tuple(sorted((token, float(bias)) for token, bias in (self.logit_bias or {}).items())),
            seed=seed if self.seed is None else self.seed,
            num_logprobs=self.logprobs,
        )


def as_float32(value: float) -> float:
    """As the engine computes with it: what is just below a bound may be rounded up to it."""
    (narrow,) = struct.unpack("f", struct.pack("f", value))
    return float(narrow)
