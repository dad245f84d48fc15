"""OpenTelemetry spans, if the usual variables OTEL_* enable them; otherwise nothing is loaded.

Needs the extra `otel` (pip install 'tonnage[otel]'). Exports OTLP over HTTP to OTEL_EXPORTER_OTLP_ENDPOINT.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer, TracerProvider

log = logging.getLogger(__name__)
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PARENT = "traceparent"
"""The header that carries a span to the process that is called (W3C Trace Context)."""
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OURS = "http/protobuf"
_tracer: Tracer | None = None


class Span:
    """A span: one operation with its duration."""

    def __init__(self, span: OtelSpan | None = None) -> None:
        self._span = span

    def note(self, key: str, value: str | int) -> None:
        """Set an attribute."""
        if self._span is not None:
            self._span.set_attribute(key, value)

    def fail(self, why: str) -> None:
        """Mark the span as failed. An exception that leaves the span does so by itself."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, why))


_NOTHING = Span()


def is_on() -> bool:
    """Whether spans are recorded."""
    return _tracer is not None


def span(
    name: str, attributes: Mapping[str, str | int], *, kind: str = "internal", parent: str = ""
) -> AbstractContextManager[Span]:
    """Open a span within the present one. kind: internal, client or server. parent: a header's value from the caller.

    attributes: never a secret.
    """
    return nullcontext(_NOTHING) if _tracer is None else _open(_tracer, name, attributes, kind, parent)


@contextmanager
def _open(tracer: Tracer, name: str, attributes: Mapping[str, str | int], kind: str, parent: str) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({PARENT: parent}) if parent else None
    kinds = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}
    with tracer.start_as_current_span(name, context=context, kind=kinds[kind], attributes=dict(attributes)) as opened:
        yield Span(opened)


def headers() -> dict[str, str]:
    """Headers of a call that make the callee's spans children of the present span."""
    if _tracer is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found


def use(provider: TracerProvider | None) -> None:
    """Record with that provider from now on, None: stop."""
    global _tracer
    _tracer = provider.get_tracer("tonnage") if provider is not None else None


def setup(service: str, attributes: Mapping[str, str]) -> None:
    """Record if the environment enables it. service: default of OTEL_SERVICE_NAME; attributes: of all spans.

    If it is enabled and unavailable, a warning is logged: storage must not depend on it.
    """
    if not _is_asked_for():
        return
    if (protocol := next(filter(None, map(os.environ.get, _PROTOCOLS)), _OURS)) != _OURS:
        log.warning("no spans are sent: only one protocol is known want=%s asked=%s", _OURS, protocol)
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider as Provider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as failure:
        log.warning("no spans are sent: install tonnage[otel], or unset OTEL_* error=%s", failure)
        return
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    provider = Provider(resource=Resource.create({**attributes, "service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use(provider)
    log.info("spans are sent service=%s", name)


def _is_asked_for() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    return exporter == "otlp" and any(os.environ.get(name) for name in ENDPOINTS)
