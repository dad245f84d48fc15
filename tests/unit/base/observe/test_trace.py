"""Spans: nothing at all unless they are asked for, and then one for each call and each provisioning."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tonnage.base.observe import trace

_LOADS = """
import sys, os
os.environ.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
import tonnage.tools.cli.node, tonnage.node.process
from tonnage.base.observe import trace
trace.setup("tonnage-node", {})
with trace.span("x", {}) as span:
    span.note("k", 1); span.fail("no")
assert trace.headers() == {} and not trace.is_on()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Takes the spans."""
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.use(provider)
    yield made
    trace.use(None)


def _one(exporter: InMemorySpanExporter) -> ReadableSpan:
    (found,) = exporter.get_finished_spans()
    return found


@pytest.mark.slow
def test_nothing_is_loaded_where_nobody_asks() -> None:
    ended = subprocess.run([sys.executable, "-c", _LOADS], capture_output=True, text=True, check=False, timeout=300)
    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")


def test_a_span_has_its_attributes_and_what_went_wrong(exporter: InMemorySpanExporter) -> None:
    def work() -> None:
        with trace.span("one", {"a": "b"}, kind="client") as span:
            span.note("n", 1)
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        work()
    found = _one(exporter)
    assert (found.name, found.kind, dict(found.attributes or {})) == ("one", SpanKind.CLIENT, {"a": "b", "n": 1})
    assert found.status.status_code is StatusCode.ERROR


def test_a_span_can_fail_without_an_exception(exporter: InMemorySpanExporter) -> None:
    with trace.span("one", {}) as span:
        span.fail("no room")
    assert (_one(exporter).status.status_code, _one(exporter).status.description) == (StatusCode.ERROR, "no room")


def test_a_span_goes_on_in_the_process_that_is_called(exporter: InMemorySpanExporter) -> None:
    with trace.span("caller", {}):
        told = trace.headers()
    with trace.span("called", {}, kind="server", parent=told[trace.PARENT]):
        pass
    caller, called = exporter.get_finished_spans()
    assert caller.context is not None
    assert called.context is not None
    assert called.parent is not None
    assert (called.parent.span_id, called.context.trace_id) == (caller.context.span_id, caller.context.trace_id)


def test_a_parent_that_makes_no_sense_is_none(exporter: InMemorySpanExporter) -> None:
    with trace.span("called", {}, kind="server", parent="00-nonsense"):
        pass
    assert _one(exporter).parent is None


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_usual_variables_ask(
    environment: dict[str, str], asked: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The exporter is not among what tests install, so that asking ends in a warning that says what to do."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        trace.setup("tonnage-node", {})
    assert ("install tonnage[otel]" in caplog.text) == asked
    assert not trace.is_on()


def test_another_protocol_is_rejected_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    trace.setup("tonnage-node", {})
    assert "want=http/protobuf asked=grpc" in caplog.text
    assert not trace.is_on()
