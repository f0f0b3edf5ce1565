"""The recipe for Sentry in an installed worker, with a transport that writes to a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.cli_process import TIMEOUT_S
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.worker_process import wait_until
from tests.system.staging import ROOT

RECORDED = """
import json

import anyio
import sentry_sdk
from sentry_sdk.transport import Transport

from fastjournal.tasks import current_run
from sentry_recipe import app, send


class FileTransport(Transport):
    def capture_envelope(self, envelope):
        if (event := envelope.get_event()) is not None:
            with open("events", "a") as file:
                file.write(json.dumps(event, default=str) + "\\n")


sentry_sdk.init(dsn="http://key@localhost/1", transport=FileTransport)


@app.task(retries=1, retry_delay=0.1)
async def pack(order_id: int) -> None:
    sentry_sdk.set_tag("order", order_id)
    await anyio.sleep(0.2)
    if current_run().attempt == 1:
        raise LookupError(order_id)


@app.task
async def no_failure() -> None:
    sentry_sdk.set_tag("order", "of another")
"""


def fact(event: dict[str, Any]) -> tuple[Any, ...]:
    """Return what an event is about."""
    job = event["contexts"]["job"]
    (exception,) = event["exception"]["values"]
    assert event["transaction"] == event["tags"]["task"]
    assert job["args"]["order_id"] == event["tags"]["order"]
    return event["tags"]["task"], event["tags"]["order"], job["attempt"], exception["type"]


def test_sentry_has_an_event_for_each_failed_attempt_in_its_own_scope(tmp_path: Path) -> None:
    recipe = ROOT / "examples" / "tasks" / "sentry_recipe.py"
    (tmp_path / recipe.name).write_text(recipe.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "recorded.py").write_text(RECORDED)
    program = """
from recorded import *
for number in (1, 2):
    send.enqueue(order_id=number, to="ann@example.org")
    pack.enqueue(order_id=number + 10)
no_failure.enqueue()
"""
    with DaemonProcess(tmp_path) as daemon:
        environment = {**os.environ, "FASTJOURNAL_SERVER": daemon.address}
        environment.pop("SENTRY_DSN", None)
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            check=True,
            timeout=TIMEOUT_S,
        )
        worker = subprocess.Popen(
            [installed("fj-worker"), "recorded:app"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        recorded = tmp_path / "events"
        wait_until(lambda: recorded.exists() and recorded.read_text().count("\n") >= 6)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(TIMEOUT_S) == 0
    events = [json.loads(line) for line in recorded.read_text().splitlines()]
    assert sorted(map(fact, events)) == [
        ("recorded.pack", 11, 1, "LookupError"),
        ("recorded.pack", 12, 1, "LookupError"),
        ("sentry_recipe.send", 1, 1, "OSError"),
        ("sentry_recipe.send", 1, 2, "OSError"),
        ("sentry_recipe.send", 2, 1, "OSError"),
        ("sentry_recipe.send", 2, 2, "OSError"),
    ]
