"""Bounds of ``fj-forwarder --http``: clients that hold connections stop nothing."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from fastjournal.limits import FORWARDER_HTTP_CONNECTIONS_MAX
from fastjournal.spool import Spool
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.test_forwarder_status import PATIENCE_S, forwarding, served, wait_for

HELD = 40
SPARE = 8
"""Descriptors beside HTTP: a slot, a directory, a connection that is closed just now."""


def drip(clients: list[socket.socket]) -> list[socket.socket]:
    """Send a byte of a request line on each connection; return those that are open."""
    still = []
    for client in clients:
        try:
            client.send(b"G")
            still.append(client)
        except OSError:
            client.close()
    return still


def test_connections_that_drip_end_at_their_deadline_and_delay_no_record(tmp_path: Path) -> None:
    spool = tmp_path / "s"
    with (
        Spool(spool) as writer,
        ScriptedDaemon(Ledger().answer) as daemon,
        forwarding(spool, "--server", daemon.address, "--http", "127.0.0.1:0") as process,
    ):
        writer.append(domain="d", id="0")
        wait_for(spool, lambda status: status.done == 1)
        said = (tmp_path / "forwarder.err").read_text()
        port = int(said.partition("metrics: http://127.0.0.1:")[2].partition("/")[0])
        descriptors = Path(f"/proc/{process.pid}/fd")
        bound = len(os.listdir(descriptors)) + FORWARDER_HTTP_CONNECTIONS_MAX + SPARE
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(HELD)]
        written, metrics = 1, None
        deadline = time.monotonic() + PATIENCE_S
        while metrics is None:
            assert time.monotonic() < deadline, "no scrape while connections drip"
            clients = drip(clients)
            assert len(os.listdir(descriptors)) <= bound
            writer.append(domain="d", id=str(written))
            written += 1
            wait_for(spool, lambda status: status.done == written)  # noqa: B023 - called at once
            try:
                metrics = served(spool)
            except OSError:
                assert clients, "a scrape was refused though nobody holds a connection"
        assert metrics["fastjournal_forwarder_records_done_total", ""] > 1
        while clients:
            assert time.monotonic() < deadline, "a connection that drips outlives its deadline"
            clients = drip(clients)
            time.sleep(0.1)
    assert "Traceback" not in (tmp_path / "forwarder.err").read_text()
