"""Spans of tasks, by the SDK of OpenTelemetry: one trace from the enqueue to each run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from threading import get_ident

import anyio.lowlevel
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fastjournal.tasks import Tasks, current_run
from fastjournal.tasks.otel import OpenTelemetry
from fastjournald.testing import FastjournalDaemon


class Traced:
    """An application with a daemon, and the spans that ended."""

    def __init__(self, daemon: FastjournalDaemon) -> None:
        self.daemon = daemon
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.app = Tasks(
            queue="mails",
            middleware=[OpenTelemetry(self.provider)],
            producer=daemon.sync_client(),
        )

    def spans(self) -> list[ReadableSpan]:
        """Return the spans in the order of their begins."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


@pytest.fixture
def traced() -> Iterator[Traced]:
    with FastjournalDaemon(retry_delay=10) as daemon:
        yield Traced(daemon)


def test_a_run_is_a_child_of_its_enqueue_and_links_to_it(traced: Traced) -> None:
    @traced.app.task(name="send")
    def send(order_id: int) -> None:
        assert order_id == 7
        run = current_run()
        seen.append((trace.get_current_span(), run.job.key.decode(), run.message.headers))

    seen: list[tuple[trace.Span, str, dict[str, str]]] = []
    tracer = traced.provider.get_tracer("shop")
    with tracer.start_as_current_span("POST /orders"):
        send.enqueue(order_id=7)
    assert traced.app.run_pending(traced.daemon) == 1

    order, enqueue, process = traced.spans()
    assert [order.name, enqueue.name, process.name] == [
        "POST /orders",
        "enqueue mails",
        "process mails",
    ]
    assert (enqueue.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert enqueue.parent is not None
    assert enqueue.parent.span_id == order.context.span_id
    assert process.parent is not None
    assert process.parent.span_id == enqueue.context.span_id
    assert process.context.trace_id == order.context.trace_id
    assert [link.context.span_id for link in process.links] == [enqueue.context.span_id]
    ((current, key, headers),) = seen
    assert current.get_span_context() == process.context
    assert headers["traceparent"].split("-")[2] == f"{enqueue.context.span_id:016x}"
    of_both = {
        "messaging.system": "fastjournal",
        "messaging.destination.name": "mails",
        "fastjournal.task": "send",
    }
    assert dict(enqueue.attributes or {}) == {
        **of_both,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "create",
    }
    assert dict(process.attributes or {}) == {
        **of_both,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": key,
        "fastjournal.attempt": 1,
    }


def test_span_and_baggage_are_current_in_an_async_task_and_in_what_it_enqueues(
    traced: Traced,
) -> None:
    seen: list[tuple[object, int]] = []

    @traced.app.task(name="first")
    async def first() -> None:
        await anyio.lowlevel.checkpoint()
        seen.append((baggage.get_baggage("tenant"), get_ident()))
        await second.aenqueue()

    @traced.app.task(name="second", queue="other")
    async def second() -> None:
        seen.append((baggage.get_baggage("tenant"), get_ident()))

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    first.enqueue()
    context.detach(token)
    assert traced.app.run_pending(traced.daemon) == 2

    assert [tenant for tenant, _ in seen] == ["acme", "acme"]
    assert baggage.get_baggage("tenant") is None
    assert not trace.get_current_span().get_span_context().is_valid
    spans = traced.spans()
    assert [span.name for span in spans] == [
        *("enqueue mails", "process mails", "enqueue other", "process other")
    ]
    for before, after in pairwise(spans):
        assert after.parent is not None
        assert after.parent.span_id == before.context.span_id
    assert len({span.context.trace_id for span in spans}) == 1


def test_each_failed_attempt_has_a_span_with_its_exception(traced: Traced) -> None:
    class RefusedMailError(Exception):
        pass

    @traced.app.task(name="send")
    def send() -> None:
        if current_run().attempt == 1:
            raise RefusedMailError("SMTP 451")

    send.enqueue()
    assert traced.app.run_pending(traced.daemon) == 1
    traced.daemon.advance(3600)
    assert traced.app.run_pending(traced.daemon) == 1

    _, failed, done = traced.spans()
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.status.description == "RefusedMailError: SMTP 451"
    (event,) = failed.events
    assert (event.attributes or {})["exception.message"] == "SMTP 451"
    assert "RefusedMailError" in str((failed.attributes or {})["error.type"])
    assert done.status.status_code is trace.StatusCode.UNSET
    assert [(span.attributes or {})["fastjournal.attempt"] for span in (failed, done)] == [1, 2]
    assert failed.parent == done.parent


def test_a_job_without_trace_headers_begins_a_trace(traced: Traced) -> None:
    @traced.app.task(name="send")
    def send() -> None: ...

    message = '{"fj": 1, "task": "send", "args": {}, "headers": {"traceparent": "nonsense"}}'
    traced.daemon.sync_client().enqueue("mails", message)
    assert traced.app.run_pending(traced.daemon) == 1
    (process,) = traced.spans()
    assert process.parent is None
    assert process.links == ()


def test_without_an_sdk_tasks_run_as_ever() -> None:
    middleware = OpenTelemetry()
    with FastjournalDaemon() as daemon:
        app = Tasks(middleware=[middleware], producer=daemon.sync_client())
        ran = []
        task = app.task(name="task")(lambda: ran.append(1))
        task.enqueue()
        assert app.run_pending(daemon) == 1
        middleware.on_stop()
    assert ran == [1]


def test_without_the_api_the_import_says_which_extra_has_it() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import fastjournal.tasks.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs opentelemetry-api: pip install 'fastjournal[otel]'" in done.stderr
