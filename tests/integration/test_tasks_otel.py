"""Spans of an installed worker: those that wait for their export at SIGTERM are exported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli_process import TIMEOUT_S
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.worker_process import wait_until

MODULE = """
import json, os, time
import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from fastjournal.tasks import Tasks
from fastjournal.tasks.otel import OpenTelemetry


class FileExporter(SpanExporter):
    def export(self, spans):
        with open("spans", "a") as file:
            for span in spans:
                file.write(span.to_json(indent=None) + "\\n")
        return SpanExportResult.SUCCESS


# no exit of Python flushes it, and no time does
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(BatchSpanProcessor(FileExporter(), schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
app = Tasks(queue="mails", middleware=[OpenTelemetry()])


def say():
    span = trace.get_current_span().get_span_context()
    with open("said", "a") as file:
        file.write(f"{span.span_id:016x}\\n")


@app.task
def in_thread(seconds: float = 0) -> None:
    say()
    time.sleep(seconds)


@app.task
async def in_loop() -> None:
    await anyio.sleep(0.01)
    say()
"""


@pytest.mark.parametrize("stuck", [False, True])
def test_spans_that_wait_are_exported_at_sigterm(tmp_path: Path, stuck: bool) -> None:
    (tmp_path / "traced.py").write_text(MODULE)
    said, spans = tmp_path / "said", tmp_path / "spans"

    def lines() -> list[str]:
        return spans.read_text().splitlines()

    program = "from traced import *\nin_thread.enqueue(), in_thread.enqueue(), in_loop.enqueue()"
    program += f"\nin_loop.enqueue(), in_loop.enqueue(){', in_thread.enqueue(3600)' * stuck}"
    with DaemonProcess(tmp_path) as daemon:
        environment = {**os.environ, "FASTJOURNAL_SERVER": daemon.address}
        subprocess.run(
            [sys.executable, "-c", f"{program}\nprovider.force_flush()"],
            cwd=tmp_path,
            env=environment,
            check=True,
            timeout=TIMEOUT_S,
        )
        produced = {span["context"]["span_id"] for span in map(json.loads, lines())}
        worker = subprocess.Popen(
            [installed("fj-worker"), "traced:app", "--grace", "1"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        wait_until(lambda: said.exists() and len(said.read_text().split()) == 5 + stuck)
        assert len(lines()) == 5 + stuck, "those of the runs wait"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(TIMEOUT_S) == 0
    done = [json.loads(line) for line in lines()[5 + stuck :]]
    assert len(done) == 5
    assert {span["name"] for span in done} == {"process mails"}
    assert {span["parent_id"] for span in done} <= produced
    current = [f"0x{name}" for name in said.read_text().split()]
    assert {span["context"]["span_id"] for span in done} <= set(current)
