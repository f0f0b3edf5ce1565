"""A real daemon whose values do not fit into memory."""

from __future__ import annotations

import fcntl
import random
import re
import select
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastjournal.protocol.constants import Flag, Function
from fastjournald.config.options import PROGRAM_BYTES
from fastjournald.tables.value_cache import ENTRY_BYTES
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, set_request
from tests.integration.test_daemon_compaction import Churn, churning, outcomes

ENTRIES_BYTES = 8 * 2**20
LIMIT = PROGRAM_BYTES + ENTRIES_BYTES
VALUE_BYTES = 20_000
NUMBER = 10 * ENTRIES_BYTES // VALUE_BYTES
"""Ten times as many values as there is memory for."""

WINDOW = 40
IN_FLIGHT_BYTES = 16 * 2**20
"""Memory of one connection, of two of the largest replies, of a segment in compaction, and what
the allocator keeps of all that."""

OPTIONS = ("--memory-limit", str(LIMIT), "--cmdlog-seg-size", "2097152", "--http", "127.0.0.1:0")


def value(number: int, size: int = VALUE_BYTES) -> bytes:
    """Another one for each number."""
    return random.Random(number).randbytes(size)


def key(number: int) -> bytes:
    return b"d%d:1:0:%d" % (number % 50, number)


def figures(daemon: DaemonProcess) -> dict[str, float]:
    address = re.findall(r"event=ready .* http=(\S+)", daemon.said())[-1]
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        lines = page.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line[0] != "#"}


def fill(client: RawClient, numbers: range) -> None:
    for first in range(numbers.start, numbers.stop, WINDOW):
        some = range(first, min(first + WINDOW, numbers.stop))
        uris = (b"https://example.org/%d" % number for number in some)
        client.send(
            *(
                set_request(key(number), value(number), uri=uri)
                for number, uri in zip(some, uris, strict=True)
            )
        )
        assert all(client.reply().error == "" for _ in some)


def assert_resident_within_the_limit(daemon: DaemonProcess) -> None:
    found = figures(daemon)
    index_bytes = ENTRY_BYTES * NUMBER
    resident = found["process_resident_memory_bytes"]
    assert resident <= LIMIT + index_bytes / 4 + IN_FLIGHT_BYTES
    assert found["fastjournal_entries_memory_bytes"] <= ENTRIES_BYTES
    assert found["fastjournal_cold_values"] > NUMBER * 0.8


def test_memory_stays_in_its_limit_with_ten_times_as_many_values(
    tmp_path: Path,
) -> None:
    with DaemonProcess(tmp_path, *OPTIONS, own_interpreter=True) as daemon:
        with RawClient(daemon.address) as client:
            fill(client, range(NUMBER))
            assert_resident_within_the_limit(daemon)
            for number in random.Random(1).sample(range(NUMBER), 500):
                pairs = client.ask(build(Function.GET, key(number), flags=Flag.DATA)).pairs
                assert pairs
                assert pairs[0].value == value(number)
            assert_resident_within_the_limit(daemon)
            assert figures(daemon)["fastjournal_values_read_total"] > 400
        daemon.kill()
        daemon.start()
        assert_resident_within_the_limit(daemon)
        with RawClient(daemon.address) as client:
            left = set(range(NUMBER))
            while left:
                asked = build(Function.NEXT, b"", flags=Flag.DATA, count=WINDOW)
                reply = client.ask(asked)
                assert reply.pairs
                for pair in reply.pairs:
                    number = int(pair.key.rpartition(b":")[2])
                    assert pair.value == value(number)
                    left.remove(number)
                client.send(
                    *(
                        build(
                            Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=reply.timeout
                        )
                        for pair in reply.pairs
                    )
                )
                assert all(client.reply().error == "" for _ in reply.pairs)
            found = figures(daemon)
        assert found["fastjournal_cold_values"] == 0
        assert found["fastjournal_values_not_readable_total"] == 0
        assert found["process_resident_memory_bytes"] <= LIMIT + IN_FLIGHT_BYTES


def test_values_are_found_while_compaction_moves_them(tmp_path: Path) -> None:
    options = ("--memory-limit", "1", "--cmdlog-seg-size", "65536", "--cmdlog-clean-int", "20")
    numbers = range(300)
    with DaemonProcess(tmp_path, *options) as daemon, RawClient(daemon.address) as client:
        churn = Churn()
        for number in numbers:
            # among what the churn puts, so that segments of both are cleaned
            assert not client.ask(set_request(b"still/%d" % number, value(number, 500))).error
            if number % 30 == 0:
                churn.turn(client)
        with churning(daemon, churn):
            for _ in range(2000):
                # until each kind of cleaning was seen, and for a while longer
                for number in random.Random(churn.number).sample(numbers, 20):
                    asked = build(Function.GET, b"still/%d" % number, flags=Flag.DATA)
                    reply = client.ask(asked)
                    assert reply.error == ""
                    assert reply.pairs
                    assert reply.pairs[0].value == value(number, 500)
                if {"rewritten", "removed", "moved"} <= outcomes(daemon):
                    break
            else:
                raise AssertionError(f"cleaning did only {outcomes(daemon)}")
        churn.check(client)
        assert "not-readable" not in daemon.said()


@contextmanager
def opening_hangs(path: Path) -> Iterator[None]:
    """Let whoever opens a file wait until the block ends, by a lease of the system on it."""
    # the system asks for the end of the lease by this signal, which would end the process
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with path.open("r+b") as file:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                pytest.skip(f"no leases on this file system: {error}")
            yield
    finally:
        signal.signal(signal.SIGIO, before)


def test_disk_read_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    with (
        DaemonProcess(tmp_path, "--memory-limit", "1") as daemon,
        RawClient(daemon.address) as waits,
        RawClient(daemon.address) as works,
    ):
        assert not waits.ask(set_request(b"a:1:0:cold", value(1))).error
        assert not waits.ask(build(Function.NOP)).error
        # sealed, so that nobody but a reader opens it
        assert not waits.ask(build(Function.SNAPSHOT)).error
        (path,) = daemon.log_path.glob("*.log")
        with opening_hangs(path):
            waits.send(build(Function.GET, b"a:1:0:cold", flags=Flag.DATA))
            for number in range(100):
                assert not works.ask(set_request(b"b:1:0:%d" % number)).error
            assert works.ask(build(Function.NEXT, b"b", count=100)).pairs
            assert select.select([waits.socket], [], [], 0)[0] == [], "the read still hangs"
        (pair,) = waits.reply().pairs or ()
        assert pair.value == value(1)
