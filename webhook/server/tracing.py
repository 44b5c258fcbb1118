"""Traces: a span for each review that the API server traces, in its trace (W3C Trace Context), sent by OTLP.

OpenTelemetry is an optional extra, `ml-chassis[tracing]`, and is imported only if tracing is on. Its own
environment variables set the endpoint (`OTEL_EXPORTER_OTLP_ENDPOINT`) and the sampling.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from webhook.errors import UserError
from webhook.version import version


class Tracing:
    """Makes spans. This base class makes none: tracing is off."""

    on = False

    def review(self, endpoint: str, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """A span around a review, a child of the caller's span."""
        return nullcontext()

    def set_attributes(self, attributes: Mapping[str, str | bool]) -> None:
        """Set attributes of the current span."""

    def close(self) -> None:
        """Send the remaining spans."""


def otlp() -> Tracing:
    """Spans by OTLP over HTTP. UserError if the extra is not installed.

    Call it in the worker: the threads that send spans do not survive a fork.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        raise UserError("--tracing needs the extra: pip install 'ml-chassis[tracing]'") from None

    resource = Resource.create({"service.name": "mlchassis", "service.version": version()})
    # The API server decides which requests are traced; OTEL_TRACES_SAMPLER overrides it.
    sampler = None if "OTEL_TRACES_SAMPLER" in os.environ else ParentBased(ALWAYS_OFF)
    provider = TracerProvider(resource=resource, sampler=sampler)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("webhook", version())
    propagator = TraceContextTextMapPropagator()

    class Otlp(Tracing):
        on = True

        def review(self, endpoint: str, headers: Mapping[str, str]) -> AbstractContextManager[object]:
            carrier = {key.lower(): value for key, value in headers.items()}
            return tracer.start_as_current_span(
                f"admission {endpoint}", context=propagator.extract(carrier), kind=trace.SpanKind.SERVER
            )

        def set_attributes(self, attributes: Mapping[str, str | bool]) -> None:
            trace.get_current_span().set_attributes(dict(attributes))

        def close(self) -> None:
            provider.shutdown()

    return Otlp()
