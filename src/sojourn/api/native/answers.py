"""What the dialect answers: the object of a generation, whole or so far, and the words of its end. Pure.

Every chunk of a stream says all that was said so far, and with log-probabilities of a prompt that may be long: what does
not change any more is put into words once.
"""

from collections.abc import Mapping, Sequence

import msgspec

from sojourn.api import wire
from sojourn.api.generation import Generation
from sojourn.api.native.job import Job, Logprobs
from sojourn.core.step import Sample
from sojourn.models.tokenizer import Tokenizer

Json = dict[str, object]
ERROR_TYPES = {400: "BadRequestError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


class Answer:
    """Of one generation of a job: `so_far` as often as there is more, and once when it has ended."""

    def __init__(self, job: Job, prompt: Sequence[int], generation: Generation, tokenizer: Tokenizer) -> None:
        self._job = job
        self._generation = generation
        self.scores = None if job.logprobs is None else Scores(job.logprobs, prompt, tokenizer)

    def so_far(self) -> Json:
        """Text and ids so far; all of them once the generation has ended."""
        generation = self._generation
        meta: Json = {"id": self._job.rid, "finish_reason": None, "weight_version": "default", "reasoning_tokens": 0}
        if generation.has_ended:
            meta |= _ending(generation)
        else:
            meta |= {
                "prompt_tokens": generation.started.prompt_tokens,
                "completion_tokens": len(generation.output_ids),
                "cached_tokens": generation.cached_tokens,
            }
        if self.scores is not None:
            meta |= self.scores.so_far(generation.samples)
        return {"text": generation.text, "output_ids": list(generation.output_ids), "meta_info": meta}


class Scores:
    """Log-probabilities as the dialect writes them. `prompt` is what was sent; `tell_prompt` comes first."""

    def __init__(self, wanted: Logprobs, prompt: Sequence[int], tokenizer: Tokenizer) -> None:
        self._wanted = wanted
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._input: dict[str, msgspec.Raw] | None = None
        self._output: list[msgspec.Raw] = []
        self._tops: list[msgspec.Raw] = []

    @property
    def has_prompt(self) -> bool:
        return self._input is not None

    def tell_prompt(self, known: Sequence[Sample]) -> None:
        """All that is known of it. The first token that is told has no log-probability."""
        wanted, prompt = self._wanted, self._prompt
        start = len(prompt) - 1 if wanted.start is None else wanted.start
        first = [self._shown(token, None) for token in prompt[max(0, start) : start + 1]]
        told = [*first, *(self._shown(sample.token, sample.logprob) for sample in known)]
        fields = {"input_token_logprobs": _raw(told)}
        if wanted.top:
            fields["input_top_logprobs"] = _raw([*(None for _ in first), *map(self._top, known)])
        self._input = fields

    def so_far(self, samples: Sequence[Sample]) -> Json:
        assert self._input is not None, "the prompt comes first"
        for sample in samples[len(self._output) :]:
            self._output.append(_raw(self._shown(sample.token, sample.logprob)))
            if self._wanted.top:
                self._tops.append(_raw(self._top(sample)))
        fields: Json = {**self._input, "output_token_logprobs": list(self._output)}
        if self._wanted.top:
            fields["output_top_logprobs"] = list(self._tops)
        return fields

    def _top(self, sample: Sample) -> list[list[object]]:
        return [self._shown(token, logprob) for token, logprob in sample.top]

    def _shown(self, token: int, logprob: float | None) -> list[object]:
        text = self._tokenizer.decode([token], skip_special=False) if self._wanted.with_text else None
        return [logprob, token, text]


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def refused(rid: str, message: str, status: int) -> Json:
    """The one chunk of a stream that was refused, or that the engine left."""
    reason = {"type": "abort", "message": message, "status_code": status, "err_type": ERROR_TYPES.get(status)}
    counts = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
    meta = {"id": rid, "finish_reason": reason, "weight_version": "default", **counts}
    return {"text": "", "output_ids": [], "meta_info": meta}


def _ending(generation: Generation) -> Json:
    end, usage = generation.end, generation.end.usage
    meta: Json = {
        "finish_reason": finish_reason(end),
        "completion_tokens": usage.completion_tokens,
        "num_retractions": usage.num_retractions,
        "dp_rank": None,
        "e2e_latency": usage.finished_at - usage.queued_at,
    }
    if usage.admitted_at is not None:
        meta |= {"prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens}
    return meta


def finish_reason(end: wire.Ended) -> Mapping[str, object]:
    if end.reason == "abort":
        message = "Abort in waiting queue" if end.usage.admitted_at is None else "Aborted"
        return {"type": "abort", "message": message, "status_code": None, "err_type": None}
    if end.reason == "length":
        return {"type": "length", "length": end.usage.completion_tokens}
    return {"type": "stop", "matched": end.stop_match}  # None: another surface interrupted it, and what was said stands
