"""A real daemon between hostile clients: its memory, and those who behave."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from fastjournal import limits
from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Request
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import (
    RawClient,
    build,
    codes,
    listen_request,
    set_request,
)

CLIENTS = 100
FLOODS_A_ROUND = 3
INFLIGHT_BYTES = 8 * 1024 * 1024
VALUE_BYTES = 500_000
CONNECTION_BYTES = 128 * 1024
"""Memory that docs/operating.md grants each connection while memory is scarce."""
SLACK_BYTES = 10 * 1024 * 1024
"""Memory that the allocator keeps, and that a daemon takes at its first work."""
HELD_BYTES_MAX = (
    INFLIGHT_BYTES + limits.REPLIES_BYTES_MAX + VALUE_BYTES + CLIENTS * CONNECTION_BYTES
)
"""Bytes in flight, as the daemon counts them, at most."""
GROWTH_BYTES_MAX = HELD_BYTES_MAX + SLACK_BYTES

NOP = build(Function.NOP)


def resident_bytes(daemon: DaemonProcess) -> int:
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def figure(daemon: DaemonProcess, name: str) -> float:
    """Return a sample of the metrics."""
    address = re.findall(r"event=ready .*http=(\S+)", daemon.said())[-1]
    with urlopen(f"http://{address}/metrics") as response:
        text = response.read().decode()
    found = re.search(rf"(?m)^{re.escape(name)} (\S+)$", text)
    assert found is not None, name
    return float(found[1])


def get(key: bytes) -> Request:
    return build(Function.GET, key, flags=Flag.DATA)


def flood(client: RawClient, data: bytes) -> None:
    """Send without an end, or half a value once, and do not wait until the daemon takes it."""
    client.socket.setblocking(False)
    try:
        while client.socket.send(data) and data is not HALF:
            pass
    except (BlockingIOError, ConnectionError):
        pass


def behave(client: RawClient, rounds: int) -> None:
    """Do what a producer and a worker do, and get every answer."""
    for number in range(rounds):
        key = b"good:1:0:%d" % number
        assert client.ask(set_request(key, b"v" * 100)).code == ""
        assert client.ask(get(key)).pairs
        leased = client.ask(build(Function.NEXT, b"good", flags=Flag.DATA))
        assert leased.pairs
        done = build(Function.DELETE, key, flags=Flag.WORKED_ON, timeout=leased.timeout)
        assert client.ask(done).code == ""


@contextmanager
def crowd(daemon: DaemonProcess, data: bytes) -> Iterator[list[RawClient]]:
    """Clients that send again and again, and never read."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(RawClient(daemon.address, receive_bytes=4096))
            for _ in range(CLIENTS)
        ]
        for client in clients:
            flood(client, data)
        yield clients


HALF = encode_request(set_request(b"half", bytes(VALUE_BYTES)))[:-1]
FLOODS = {
    "large values": encode_request(get(b"large")) * 2000,
    "half large values": HALF,
    "tiny requests": encode_request(NOP) * 3000,
    "stats": encode_request(build(Function.STATS)) * 3000,
}


@pytest.mark.parametrize("kind", FLOODS)
def test_memory_stays_within_its_bound_while_100_clients_send_and_do_not_read(
    tmp_path: Path, kind: str
) -> None:
    options = ("--max-inflight", str(INFLIGHT_BYTES), "--http", "127.0.0.1:0")
    with (
        DaemonProcess(tmp_path, *options) as daemon,
        RawClient(daemon.address) as good,
    ):
        assert good.ask(set_request(b"large", bytes(VALUE_BYTES))).code == ""
        behave(good, 20)
        before = resident_bytes(daemon)
        grown = []
        held = []
        for _ in range(2):
            with crowd(daemon, FLOODS[kind]) as clients:
                for _ in range(FLOODS_A_ROUND):
                    for client in clients:
                        flood(client, FLOODS[kind])
                    behave(good, 10)
                    grown.append(resident_bytes(daemon) - before)
                    held.append(figure(daemon, "fastjournal_inflight_bytes"))
            behave(good, 10)
        assert max(held) < HELD_BYTES_MAX
        assert max(grown) < GROWTH_BYTES_MAX
        # nothing stays behind from round to round
        assert max(grown[FLOODS_A_ROUND:]) < max(grown[:FLOODS_A_ROUND]) + SLACK_BYTES
        assert good.ask(get(b"large")).pairs or kind == "large values"


def test_clients_that_are_idle_are_closed(tmp_path: Path) -> None:
    options = ("--request-timeout", "1", "--send-timeout", "1", "--idle-timeout", "2")
    with DaemonProcess(tmp_path, *options) as daemon, ExitStack() as stack:

        def connect() -> RawClient:
            return stack.enter_context(RawClient(daemon.address, receive_bytes=4096))

        # each asks at once: what has not asked for 2 seconds is closed, too
        idle = connect()
        assert idle.ask(set_request(b"large", bytes(VALUE_BYTES))).code == ""
        waits = connect()
        assert waits.ask(listen_request(b"a"), NOP).code == ""
        half = connect()
        half.socket.sendall(encode_request(set_request(b"k"))[:-1])
        deaf = connect()
        flood(deaf, FLOODS["large values"])
        assert codes(half.rest()) == ["bad-request"]
        assert idle.rest() == []
        deaf.socket.setblocking(True)
        with suppress(ConnectionError):
            assert len(deaf.rest()) < 2000
        with RawClient(daemon.address) as good:
            assert good.ask(set_request(b"a:1:0:x")).code == ""
        assert waits.reply().pairs
        for reason in ("request-timeout", "send-timeout", "idle-timeout"):
            assert f"event={reason}" in daemon.said()


def test_clients_wait_until_the_daemon_has_descriptors(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon, RawClient(daemon.address) as good, ExitStack() as stack:
        behave(good, 1)
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        taken = len(os.listdir(f"/proc/{daemon.pid}/fd"))
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (taken, hard))
        waiting = [stack.enter_context(RawClient(daemon.address)) for _ in range(5)]
        for client in waiting:
            client.send(NOP)
        while "event=no-room-for-connections" not in daemon.said():
            behave(good, 1)
        behave(good, 20)
        assert daemon.said().count("event=no-room-for-connections") == 1
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
        for client in waiting:
            assert client.reply().code == ""
        assert daemon.stop() == 0
