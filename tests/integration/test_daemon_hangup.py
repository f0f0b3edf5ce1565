"""Hang-up: no work is delivered to clients that are gone: over real sockets, again and again."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastjournal.protocol.constants import Flag, Function
from tests.certificates import Authority
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, listen_request, set_request

TIMES = 25


def fin(client: RawClient) -> None:
    """End in good order."""
    client.socket.shutdown(socket.SHUT_RDWR)
    client.socket.close()


def half_close(client: RawClient) -> None:
    """Send nothing more, and go on reading: for a NEXT that waits that is the end, too."""
    client.socket.shutdown(socket.SHUT_WR)


def reset(client: RawClient) -> None:
    """End as a process that crashed with unread data."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


@contextmanager
def daemon_on(transport: str, directory: Path) -> Iterator[Callable[[], RawClient]]:
    """Start a daemon; what is yielded connects to it."""
    if transport == "unix":
        path = f"unix:{directory}/s"
        with DaemonProcess(directory, "--listen", path):
            yield lambda: RawClient(path)
    elif transport == "tls":
        authority = Authority(directory)
        files = authority.sign("daemon")
        context = ssl.create_default_context(cafile=authority.path)
        options = ("--tls-cert", files.cert, "--tls-key", files.key)
        with DaemonProcess(directory, *options) as daemon:

            def connect() -> RawClient:
                client = RawClient(daemon.address)
                client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
                return client

            yield connect
    else:
        with DaemonProcess(directory) as daemon:
            yield lambda: RawClient(daemon.address)


@pytest.mark.parametrize("flags", [Flag(0), Flag.OVERWRITE], ids=["lease", "pop"])
@pytest.mark.parametrize("end", [fin, half_close, reset])
@pytest.mark.parametrize("transport", ["tcp", "unix", "tls"])
def test_hangup_ends_a_wait_before_work_is_leased(
    transport: str, end: Callable[[RawClient], None], flags: Flag, tmp_path: Path
) -> None:
    ended = []
    with daemon_on(transport, tmp_path) as connect, connect() as other:
        for number in range(TIMES):
            key = b"a:1:0:%d" % number
            waits = listen_request(b"a", identifier=1)
            waits.flags |= flags
            worker = connect()
            worker.send(waits, build(Function.NOP, identifier=2))
            assert worker.reply().identifier == 2, "it waits"
            end(worker)
            ended.append(worker)
            assert other.ask(set_request(key)).code == ""
            found = other.ask(build(Function.NEXT, b"a", flags=Flag.META))
            assert found.pairs, f"handed out to a client that is gone, the {number}th time"
            assert found.pairs[0].key == key
            assert found.pairs[0].meta is not None
            assert found.pairs[0].meta.attempts == 0
            done = build(Function.DELETE, key, flags=Flag.WORKED_ON, timeout=found.timeout)
            assert other.ask(done).code == ""
    for worker in ended:
        worker.socket.close()


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_requests_before_a_half_close_are_answered(transport: str, tmp_path: Path) -> None:
    with daemon_on(transport, tmp_path) as connect, connect() as client:
        client.send(set_request(b"a:1:0:x"), build(Function.NEXT, b"a"), build(Function.NOP))
        half_close(client)
        set_, work, nop = client.rest()
        assert (set_.code, nop.code) == ("", "")
        assert work.pairs
