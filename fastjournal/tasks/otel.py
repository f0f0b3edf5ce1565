"""OpenTelemetry: one trace from the enqueue of a task to its runs.

``Tasks(middleware=[OpenTelemetry()])``; it takes the extra ``otel``, which is the API only. The
program chooses SDK and exporter.

The span of the enqueue (kind PRODUCER) is current where the propagator writes the headers
(``traceparent``). It ends before the SET is sent. The span of a run (kind CONSUMER) has it as its
parent, so that an order and its mail are one trace, and links to it, as the conventions for
messaging ask for. Each attempt has a span of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fastjournal.tasks.messages import TaskMessage
from fastjournal.tasks.middleware import Middleware, TaskRun

try:
    from opentelemetry import context, propagate, trace
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "fastjournal.tasks.otel needs opentelemetry-api: pip install 'fastjournal[otel]'",
        name=missing.name,
    ) from missing

FLUSH_S: Final = 5.0
"""How long the end of a worker waits for the exporter, at most."""


class OpenTelemetry(Middleware):
    """Middleware that makes a span of each enqueue and of each run.

    Args:
        tracer_provider: It makes the spans; None: that of ``opentelemetry.trace``, also if it is
            set later.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._provider = tracer_provider
        self._tracer = trace.get_tracer("fastjournal.tasks", tracer_provider=tracer_provider)

    def on_enqueue(self, message: TaskMessage) -> None:
        """Add ``traceparent``, and what else the propagator writes, to the headers."""
        with self._tracer.start_as_current_span(
            f"enqueue {message.queue}",
            kind=trace.SpanKind.PRODUCER,
            attributes=_attributes("enqueue", "create", message),
        ):
            propagate.inject(message.headers)

    @contextmanager
    def around(self, run: TaskRun) -> Iterator[None]:
        """Have the span of the run, and the baggage of the enqueue, be current in the function."""
        received = propagate.extract(run.message.headers)
        creation = trace.get_current_span(received).get_span_context()
        token = context.attach(received)
        try:
            with self._tracer.start_as_current_span(
                f"process {run.message.queue}",
                kind=trace.SpanKind.CONSUMER,
                links=[trace.Link(creation)] if creation.is_valid else [],
                attributes={
                    **_attributes("process", "process", run.message),
                    "messaging.message.id": run.job.key.decode(errors="backslashreplace"),
                    "fastjournal.attempt": run.attempt,
                },
            ) as span:
                try:
                    yield
                except Exception as error:
                    kind = type(error)
                    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
                    span.set_attribute("error.type", name)
                    raise
        finally:
            context.detach(token)

    def on_stop(self) -> None:
        """Export the spans that wait, which would be lost with the worker."""
        provider = self._provider or trace.get_tracer_provider()
        flush = getattr(provider, "force_flush", None)  # only a provider of an SDK has it
        if flush is not None:
            flush(int(FLUSH_S * 1000))


def _attributes(name: str, kind: str, message: TaskMessage) -> dict[str, str]:
    return {
        "messaging.system": "fastjournal",
        "messaging.destination.name": message.queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "fastjournal.task": message.task,
    }
