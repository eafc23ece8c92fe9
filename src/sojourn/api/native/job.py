"""From a body of the dialect to what is to be run: one `Job` per answer. Every field is honoured, accepted or refused by name.

Knows the text side of the model; starts nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sojourn.api.front import TextSide
from sojourn.api.native.schemas import GenerateBody, SamplingBody, SessionParamsBody
from sojourn.api.options import LOGPROBS_MAX, PENALTY_MAX, REPETITION_MAX, REPETITION_MIN, STOPS_MAX, TurnOptions
from sojourn.api.schemas import TOKENS_MAX, bias_by_id
from sojourn.api.text.stop_strings import TextStream
from sojourn.core.bounds import SEED_MAX, check_number, check_range, check_text
from sojourn.core.errors import ClientError
from sojourn.core.step import SamplingParams

BATCH_MAX = 64
STOP_IDS_MAX = 256
# Said to a scheduler, a router or a log that is not ours: they change no answer.
NO_EFFECT = frozenset(
    {
        "priority",
        "routed_dp_rank",
        "data_parallel_rank",
        "log_metrics",
        "background",
        "external_trace_header",
        "routing_key",
        "no_logs",
        "custom_labels",
        "received_time",
        "conversation_id",
        "stream_options",
        "modalities",
    }
)
_UNSUPPORTED_SAMPLING = (
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "stop_regex",
    "custom_params",
    "min_new_tokens",
)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Wanted beside each token: that many likeliest ones, and their texts."""

    top: int
    with_text: bool
    start: int | None  # also those of the prompt from this token on; None: of none

    def first_known(self, num_prompt: int) -> int | None:
        """The first token of a prompt to ask for: that at `start` itself is told without one."""
        if self.start is None:
            return None
        if self.start >= num_prompt:
            raise ClientError(
                f"logprob_start_len, ({self.start}) is higher than the number of input tokens ({num_prompt}). "
                "Request with a lower logprob_start_len.",
                param="logprob_start_len",
            )
        return self.start + 1


@dataclass(frozen=True, slots=True)
class Job:
    """One generation. `sampling` has its seed."""

    rid: str
    input_field: str  # that the ids came in
    ids: list[int]
    sampling: SamplingParams
    max_new_tokens: int | None
    stops: list[str]
    stop_ids: list[int]
    ignore_eos: bool
    skip_special: bool
    no_stop_trim: bool
    logprobs: Logprobs | None
    cache_salt: str
    session: SessionParamsBody | None

    def text_stream(self, text: TextSide) -> TextStream:
        """How its tokens are shown: the stop is left out, unless it is to stay."""
        if self.no_stop_trim:
            return TextStream(text.tokenizer, skip_special=self.skip_special)
        ending = set(self.stop_ids) | (set() if self.ignore_eos else text.eos_ids)
        return TextStream(text.tokenizer, self.stops, skip_special=self.skip_special, ending_ids=ending)


def jobs_of(
    body: GenerateBody, text: TextSide, new_id: Callable[[], str], new_seed: Callable[[], int]
) -> tuple[list[Job], bool]:
    """The jobs of a body, and whether they are answered as a list. Raises ClientError naming the first field at fault."""
    _check_fields(body)
    prompts, is_batch = _prompts(body, text)
    session = body.session_params if body.session_params is not None and body.session_params.id is not None else None
    if session is not None and is_batch:
        raise ClientError("a batch cannot run in a session: send its prompts one by one", param="session_params")
    samplings = _spread("sampling_params", body.sampling_params or SamplingBody(), len(prompts))
    counts = {sampling.n for sampling in samplings}
    check_range("sampling_params.n", max(counts), 1, BATCH_MAX // len(prompts))
    check_range("sampling_params.n", min(counts), 1, BATCH_MAX)
    if session is not None and counts != {1}:
        raise ClientError("n must be 1 in a session: each answer would be another history", param="sampling_params.n")
    if len(counts) > 1:
        raise ClientError("n must be the same for all prompts of a batch", param="sampling_params.n")
    copies = counts.pop()
    rids = _rids(body, len(prompts) * copies, new_id)
    if (is_batch or copies > 1) and body.stream:
        raise ClientError("one answer can be streamed, not several: send stream false, or one prompt", param="stream")
    jobs: list[Job] = []
    for prompt, sampling in zip(prompts, samplings, strict=True):
        first = _job(body, sampling, prompt, rids[len(jobs)], session, text.card.vocab_size, new_seed())
        jobs += [
            replace(first, rid=rids[len(jobs) + i], sampling=replace(first.sampling, seed=_later(first, i)))
            for i in range(copies)
        ]
    return jobs, is_batch or copies > 1


def _later(job: Job, index: int) -> int:
    return (job.sampling.seed + index) % (SEED_MAX + 1)


def _check_fields(body: GenerateBody) -> None:
    for name, value in (body.model_extra or {}).items():
        if value not in (None, False, [], {}, "") and name not in NO_EFFECT:
            raise ClientError(f"{name} is not supported", param=name, code="unsupported_parameter")
    if body.session_id is not None and body.session_params is not None:
        raise ClientError("session_id and session_params cannot both be set.", param="session_id")


def _prompts(body: GenerateBody, text: TextSide) -> tuple[list[list[int]], bool]:
    if (body.text is None) == (body.input_ids is None):
        raise ClientError("Either text or input_ids should be provided, and not both.", param="input_ids")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        for one in texts:
            check_text("text", one, 0)
        tokenizer = text.tokenizer
        prompts = [tokenizer.encode(one, add_bos=tokenizer.config.add_bos) for one in texts]
        field, is_batch = "text", not isinstance(body.text, str)
    else:
        lists = body.input_ids or []
        is_batch = bool(lists) and isinstance(lists[0], list)
        prompts = [list(one) for one in lists if isinstance(one, list)] if is_batch else [_flat(lists)]
        field = "input_ids"
    if not 1 <= len(prompts) <= BATCH_MAX:
        raise ClientError(f"{field} has {len(prompts)} prompts: 1 to {BATCH_MAX} fit a batch", param=field)
    for ids in prompts:
        _check_prompt(field, ids, body, text)
    return prompts, is_batch


def _flat(ids: Sequence[int | list[int]]) -> list[int]:
    return [i for i in ids if isinstance(i, int)]


def _check_prompt(field: str, ids: list[int], body: GenerateBody, text: TextSide) -> None:
    vocab_size, context = text.card.vocab_size, text.card.context
    if ids and max(ids) >= vocab_size:
        index = next(index for index, token in enumerate(ids) if token >= vocab_size)
        raise ClientError(
            f"{field}[{index}] is {ids[index]}: a token id is an integer from 0 to {vocab_size - 1}", param=field
        )
    if not ids and (body.session_params is None or body.session_params.id is None):
        raise ClientError(f"{field} is empty: only a session has something to go on with", param=field)
    if len(ids) >= context:
        raise ClientError(
            f"The input ({len(ids)} tokens) is longer than the model's context length ({context} tokens).",
            param=field,
            code="context_length_exceeded",
        )


def _spread(name: str, value: SamplingBody | list[SamplingBody], count: int) -> list[SamplingBody]:
    if isinstance(value, SamplingBody):
        return [value] * count
    if len(value) != count:
        raise ClientError(f"{name} has {len(value)} entries for {count} prompts", param=name)
    return value


def _rids(body: GenerateBody, count: int, new_id: Callable[[], str]) -> list[str]:
    if body.rid is None:
        return [new_id() for _ in range(count)]
    given = [body.rid] if isinstance(body.rid, str) else body.rid
    if len(given) == 1 and count > 1:
        return [f"{given[0]}_{index}" for index in range(count)]
    if len(given) != count or len(set(given)) != count:
        raise ClientError(f"rid must name each of the {count} answers once", param="rid")
    return given


def _job(
    body: GenerateBody,
    asked: SamplingBody,
    ids: list[int],
    rid: str,
    session: SessionParamsBody | None,
    vocab_size: int,
    seed: int,
) -> Job:
    _check_sampling(asked, vocab_size)
    logprobs = _logprobs(body)
    options = TurnOptions(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=max(0, asked.top_k),
        min_p=asked.min_p,
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        logit_bias=None if asked.logit_bias is None else bias_by_id(asked.logit_bias),
        seed=asked.sampling_seed,
        stop=() if asked.stop is None else asked.stop,
        logprobs=None if logprobs is None else logprobs.top,
        ignore_eos=asked.ignore_eos,
    )
    options.check(vocab_size=vocab_size)
    return Job(
        rid=rid,
        input_field="input_ids" if body.text is None else "text",
        ids=ids,
        sampling=options.sampling(seed),
        max_new_tokens=asked.max_new_tokens,
        stops=list(options.stop_strings),
        stop_ids=asked.stop_token_ids or [],
        ignore_eos=asked.ignore_eos,
        skip_special=asked.skip_special_tokens,
        no_stop_trim=asked.no_stop_trim,
        logprobs=logprobs,
        cache_salt=f"{body.cache_salt or ''}{body.extra_key or ''}",
        session=session,
    )


def _check_sampling(asked: SamplingBody, vocab_size: int) -> None:
    """What is particular to this dialect; the rest is `TurnOptions`'."""
    for name in _UNSUPPORTED_SAMPLING:
        if asked.model_dump(include={name})[name] not in (None, 0):
            raise ClientError(f"{name} is not supported", param=name, code="unsupported_parameter")
    check_range("max_new_tokens", asked.max_new_tokens, 0, TOKENS_MAX, optional=True)
    if asked.top_k != -1:
        check_range("top_k", asked.top_k, 1, TOKENS_MAX)
    check_number("repetition_penalty", asked.repetition_penalty, REPETITION_MIN, REPETITION_MAX)
    for name, value in (("presence_penalty", asked.presence_penalty), ("frequency_penalty", asked.frequency_penalty)):
        check_number(name, value, -PENALTY_MAX, PENALTY_MAX)
    check_range("sampling_seed", asked.sampling_seed, 0, SEED_MAX, optional=True)
    if isinstance(asked.stop, list) and len(asked.stop) > STOPS_MAX:
        raise ClientError(f"at most {STOPS_MAX} stop strings, got {len(asked.stop)}", param="stop")
    if len(asked.stop_token_ids or ()) > STOP_IDS_MAX:
        raise ClientError(f"at most {STOP_IDS_MAX} stop ids", param="stop_token_ids")
    for token in asked.stop_token_ids or ():
        check_range("stop_token_ids", token, 0, vocab_size - 1)


def _logprobs(body: GenerateBody) -> Logprobs | None:
    if not body.return_logprob:
        return None
    check_range("top_logprobs_num", body.top_logprobs_num, 0, LOGPROBS_MAX, optional=True)
    check_range("logprob_start_len", body.logprob_start_len, -1, TOKENS_MAX, optional=True)
    start = None if body.logprob_start_len == -1 else body.logprob_start_len
    return Logprobs(body.top_logprobs_num or 0, body.return_text_in_logprobs, start)
