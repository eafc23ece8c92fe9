"""A trace per request, by the conventions for generative AI. Imported only where tracing is configured (`OTEL_*`).

    chat smollm2 ─┬─ queue ─┬─ prefill ──┬─ decode          built at the end from the times the engine noted
                  queued    admitted     first token    end

Knows OpenTelemetry's API and SDK; sees no text.
"""

from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sojourn.api import wire
from sojourn.api.account import Asker
from sojourn.core.clock import Clock

Attributes = dict[str, str | int | float | bool | list[str]]


def make_tracer(clock: Clock, now: Callable[[], float], exporter: SpanExporter | None = None) -> "Tracer":
    """Exports over OTLP as the environment says, or by `exporter`."""
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "sojourn"}))
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
    return Tracer(provider, clock, now)


class Tracer:
    """Speaks `account.Tracer`."""

    def __init__(self, provider: TracerProvider, clock: Clock, now: Callable[[], float]) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("sojourn")
        self._clock = clock
        self._now = now

    def ended(self, asker: Asker, command: wire.Start, end: wire.Ended, model: str) -> None:
        usage = end.usage
        offset = self._now() - self._clock()  # the engine's clock is this machine's monotonic one, as ours is

        def at(moment: float) -> int:
            return int((moment + offset) * 1e9)

        operation = "text_completion" if command.session_id is None else "chat"
        parent = TraceContextTextMapPropagator().extract({"traceparent": asker.traceparent or ""})
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(asker, command, end, model, operation),
            start_time=at(usage.queued_at),
        )
        self._part(span, "queue", at(usage.queued_at), at(usage.admitted_at or usage.finished_at), {})
        if usage.admitted_at is not None:
            new = {"sojourn.new_tokens": usage.prompt_tokens - usage.cached_tokens}
            first = usage.first_token_at or usage.finished_at
            self._part(span, "prefill", at(usage.admitted_at), at(first), dict(new))
            if usage.first_token_at is not None:
                self._part(span, "decode", at(first), at(usage.finished_at), {})
        if end.miss is not None:
            span.add_event("cache_miss", {"reason": end.miss})
        if usage.num_retractions:
            span.add_event("retraction", {"count": usage.num_retractions})
        span.end(end_time=at(usage.finished_at))

    def close(self) -> None:
        """Send what has not been sent yet."""
        self._provider.shutdown()

    def _part(self, span: Span, name: str, start: int, end: int, attributes: Attributes) -> None:
        context = trace.set_span_in_context(span)
        self._tracer.start_span(name, context=context, start_time=start, attributes=attributes).end(end_time=end)


def _attributes(asker: Asker, command: wire.Start, end: wire.Ended, model: str, operation: str) -> Attributes:
    usage = end.usage
    attributes: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "sojourn",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": asker.request_id,
        "gen_ai.response.finish_reasons": [end.reason],
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
    if command.session_id is not None:
        attributes["gen_ai.conversation.id"] = command.session_id
    if usage.first_token_at is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = usage.first_token_at - usage.queued_at
    if end.reason == "abort":
        attributes["error.type"] = "abort"
    return attributes
