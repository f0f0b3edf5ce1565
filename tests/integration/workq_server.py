"""A real workq-server on a log, where one is installed: it is in no package, so it is named.

``FJ_WORKQ_SERVER`` names the program; without that it is looked for on the path.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

WORKQ_SERVER = shutil.which(os.environ.get("FJ_WORKQ_SERVER") or "workq-server")
needs_workq = pytest.mark.skipif(
    WORKQ_SERVER is None, reason="no workq-server on the path, and none in FJ_WORKQ_SERVER"
)
START_S = 20.0
Queues: TypeAlias = dict[str, list[str]]
"""Ids of jobs by queue."""
_PAGE = 100
"""Most jobs of one reply."""


class WorkqRefusedError(Exception):
    """The server did not start; its last line is the message."""


class WorkqServer:
    """A connection to a workq-server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.settimeout(START_S)
        self._reader = self._socket.makefile("rb")

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def assert_waiting(self, expected: tuple[Queues, Queues]) -> None:
        """Wait until the server shows these jobs as ready and as scheduled."""
        deadline = time.monotonic() + START_S
        # a scheduled job that is due becomes ready a moment after the start
        while (found := self.waiting()) != expected:
            assert time.monotonic() < deadline, found

    def waiting(self) -> tuple[Queues, Queues]:
        """Return the ids of the jobs that are ready, and of those scheduled, in their order."""
        ready = {queue: self._ids(f"jobs {queue}") for queue in self._ids("queues")}
        scheduled = {queue: self._ids(f"scheduled-jobs {queue}") for queue in ready}
        return (
            {queue: ids for queue, ids in ready.items() if ids},
            {queue: ids for queue, ids in scheduled.items() if ids},
        )

    def job(self, job_id: str) -> dict[str, bytes] | None:
        """Return what the server shows of a job; None: it does not know it."""
        found = self._inspect(f"job {job_id}")
        return found[0][1] if found else None

    def lease(self, queue: str) -> tuple[str, bytes]:
        """Return id and payload of the next job of a queue."""
        self._send(f"lease {queue} 1000")
        assert self._line() == ["+OK", "1"]
        job_id, _, _, size = self._line()
        return job_id, self._reader.read(int(size) + 2)[:-2]

    def _ids(self, what: str) -> list[str]:
        ids: list[str] = []
        while True:
            page = self._inspect(f"{what} {len(ids)} {_PAGE}")
            ids += [job_id for job_id, _ in page]
            if len(page) < _PAGE:
                return ids

    def _inspect(self, what: str) -> list[tuple[str, dict[str, bytes]]]:
        self._send(f"inspect {what}")
        head = self._line()
        if head == ["-NOT-FOUND"]:
            return []
        assert head[0] == "+OK", head
        found = []
        for _ in range(int(head[1])):
            name, count = self._line()
            facts: dict[str, bytes] = {}
            for _ in range(int(count)):
                key, _, value = self._reader.readline().partition(b" ")
                if key == b"payload":
                    # it may have line ends of its own
                    size = int(facts["payload-size"]) + 2
                    value += self._reader.read(size - len(value))
                facts[key.decode()] = value[:-2]
            found.append((name, facts))
        return found

    def _send(self, command: str) -> None:
        self._socket.sendall(command.encode() + b"\r\n")

    def _line(self) -> list[str]:
        return self._reader.readline().decode().split()


@contextmanager
def workq_server(log: Path) -> Iterator[WorkqServer]:
    """Run a workq-server on a log; it ends by SIGKILL.

    Raises:
        WorkqRefusedError: It does not start on this log.
    """
    assert WORKQ_SERVER is not None
    # it tells nobody which port it got: on an address of its own no other process takes it first
    host = ".".join(map(str, (127, *os.getpid().to_bytes(3))))
    with socket.create_server((host, 0)) as probe:
        address = (host, probe.getsockname()[1])
    process = subprocess.Popen(
        [WORKQ_SERVER, "-listen", f"{host}:{address[1]}", "-cmdlog-path", str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    client = None
    try:
        deadline = time.monotonic() + START_S
        # it listens when it has replayed its log
        while client is None:
            if process.poll() is not None:
                assert process.stdout is not None
                raise WorkqRefusedError(process.stdout.read().decode().splitlines()[-1])
            assert time.monotonic() < deadline
            try:
                client = WorkqServer(address)
            except ConnectionRefusedError:
                continue
        yield client
    finally:
        if client is not None:
            client.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
