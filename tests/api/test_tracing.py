"""A request's trace: names, times and counts by the conventions, under the caller's own trace."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sojourn.api import wire
from sojourn.api.account import Asker, line_of, turn_fields
from sojourn.api.tracing import Tracer
from sojourn.app.config import traces_wanted
from sojourn.core.step import SamplingParams
from sojourn.engine.events import Usage

USAGE = Usage(
    40, 30, 5, queued_at=10.0, admitted_at=10.5, first_token_at=11.0, finished_at=13.0, cached_source="session"
)
COMMAND = wire.Start("chat-1", "acme", [1], SamplingParams())
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_turn_is_a_span_with_its_parts() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracer(provider, clock=lambda: 13.0, now=lambda: 1_000_013.0)
    asker = Asker("r1", "acme", f"00-{TRACE}-00f067aa0ba902b7-01")
    tracer.ended(asker, COMMAND, wire.Ended(1, "stop", USAGE, 5, miss="evicted"), "tiny")
    spans = {span.name: span for span in exporter.get_finished_spans()}
    tracer.close()
    assert set(spans) == {"chat tiny", "queue", "prefill", "decode"}
    turn = spans["chat tiny"]
    assert turn.attributes is not None
    assert turn.attributes["gen_ai.conversation.id"] == "chat-1"
    assert turn.attributes["gen_ai.usage.cache_read.input_tokens"] == 30
    assert turn.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert [event.name for event in turn.events] == ["cache_miss"]
    assert {f"{span.context.trace_id:032x}" for span in spans.values() if span.context} == {TRACE}
    starts = [spans[name].start_time for name in ("queue", "prefill", "decode")]
    assert starts == [int(moment * 1e9) for moment in (1_000_010.0, 1_000_010.5, 1_000_011.0)]
    assert turn.end_time == int(1_000_013.0 * 1e9)


def test_the_log_line_says_everything_but_what_was_said() -> None:
    line = line_of(turn_fields(Asker("r1", "acme"), COMMAND, wire.Ended(1, "stop", USAGE, 5, pages_held=3)))
    assert "request=r1 session=chat-1 tenant=acme finish=stop prompt=40 cached=30 new=10 completion=5" in line
    assert "source=session miss=- retractions=0 pages=3 queue_ms=500.0 ttft_ms=1000.0 total_ms=3000.0" in line


def test_the_environment_asks_for_traces() -> None:
    assert not traces_wanted({})
    assert traces_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})
    assert not traces_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_SDK_DISABLED": "true"})
    assert not traces_wanted({"OTEL_TRACES_EXPORTER": "none"})
