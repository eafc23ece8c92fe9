"""What the dialect answers: the object of a generation, whole or so far, and the words of its end. Pure."""

from collections.abc import Mapping, Sequence

from sojourn.api import wire
from sojourn.api.generation import Generation
from sojourn.api.native.job import Job, Logprobs
from sojourn.models.tokenizer import Tokenizer

Json = dict[str, object]
ERROR_TYPES = {400: "BadRequestError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


def answer(job: Job, prompt: Sequence[int], generation: Generation, tokenizer: Tokenizer) -> Json:
    """Text and ids so far; all of them once the generation has ended."""
    meta: Json = {"id": job.rid, "finish_reason": None, "weight_version": "default", "reasoning_tokens": 0}
    if generation.has_ended:
        meta |= _ending(generation)
    else:
        meta |= {
            "prompt_tokens": generation.started.prompt_tokens,
            "completion_tokens": len(generation.output_ids),
            "cached_tokens": generation.cached_tokens,
        }
    if job.logprobs is not None:
        meta |= _logprobs(job.logprobs, prompt, generation, tokenizer)
    return {"text": generation.text, "output_ids": list(generation.output_ids), "meta_info": meta}


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


def _logprobs(wanted: Logprobs, prompt: Sequence[int], generation: Generation, tokenizer: Tokenizer) -> Json:
    """`prompt` is what was sent. The first of its tokens that is told has no log-probability."""

    def shown(token: int, logprob: float | None) -> list[object]:
        return [logprob, token, tokenizer.decode([token], skip_special=False) if wanted.with_text else None]

    samples, known = generation.samples, generation.known
    start = len(prompt) - 1 if wanted.start is None else wanted.start
    first = [shown(token, None) for token in prompt[max(0, start) : start + 1]]
    fields: Json = {
        "input_token_logprobs": [*first, *(shown(sample.token, sample.logprob) for sample in known)],
        "output_token_logprobs": [shown(sample.token, sample.logprob) for sample in samples],
    }
    if wanted.top:
        tops = [[shown(token, value) for token, value in sample.top] for sample in (*known, *samples)]
        fields["input_top_logprobs"] = [*(None for _ in first), *tops[: len(known)]]
        fields["output_top_logprobs"] = tops[len(known) :]
    return fields
