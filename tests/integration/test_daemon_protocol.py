"""Bad input, floods, waiting and limits over the wire, while other clients work on."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest

from fastjournal.clock import unique_timestamp
from fastjournal.limits import WAITS_PER_CONNECTION_MAX
from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import Flag, Function
from tests.functions import NO_FUNCTIONS
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.programs import installed
from tests.integration.raw_client import (
    RawClient,
    build,
    codes,
    listen_request,
    set_request,
)

MAX_VALUE = 5000
SECOND = 1_000_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    directory = tmp_path_factory.mktemp("daemon")
    process = DaemonProcess(directory, "--max-value", str(MAX_VALUE), own_interpreter=True)
    with process:
        yield process
        assert process.stop() == 0
    assert "Traceback" not in process.said()


@pytest.fixture
def neighbour(daemon: DaemonProcess) -> Iterator[RawClient]:
    """Another client, which was there before and must notice nothing."""
    with RawClient(daemon.address) as client:
        key = b"neighbour/%d" % unique_timestamp()  # no work, which any client may take
        assert client.ask(set_request(key)).code == ""
        yield client
        assert client.ask(build(Function.GET, key)).code == ""
        assert client.ask(build(Function.DELETE, key)).code == ""


def header(magic: bytes = b"FJ", version: int = 1, flags: int = 0) -> bytes:
    return magic + struct.pack(">HHHHQ", version, Function.SET, 77, flags, unique_timestamp())


BAD_FRAMES = {
    "another magic": (b"GET / HTTP/1.1\r\n\r\n", "bad-request", 0x4854),
    "another version": (header(version=2) + b"\x01k", "unsupported-version", 77),
    "value size 0": (header(flags=1 << 1) + b"\x01k\x00", "bad-request", 77),
    "a value over max-value": (
        header(flags=3 << 1) + b"\x01k" + struct.pack(">I", MAX_VALUE + 2) + b"\x01",
        "too-large",
        77,
    ),
    "a claim of 4 GiB": (header(flags=3 << 1) + b"\x01k\xff\xff\xff\xff", "too-large", 77),
}


@pytest.mark.rule(
    "Framing errors: Earlier replies are sent first, and only that connection is closed"
)
@pytest.mark.parametrize("what", BAD_FRAMES)
def test_malformed_message_gets_its_error_after_what_is_owed_and_the_end(
    daemon: DaemonProcess, neighbour: RawClient, what: str
) -> None:
    data, code, identifier = BAD_FRAMES[what]
    with RawClient(daemon.address) as client:
        owed = encode_request(set_request(b"plain/%d" % unique_timestamp()))
        client.socket.sendall(owed + data + b"more of it")
        replies = client.rest()
        assert codes(replies) == ["", code]
        assert replies[1].identifier == identifier


@pytest.mark.rule("Framing errors: the stream ends inside a message")
def test_end_of_the_stream_inside_a_message_is_a_bad_request(
    daemon: DaemonProcess, neighbour: RawClient
) -> None:
    whole = encode_request(set_request(b"half", b"v" * 100))
    for cut in (1, 5, 17, len(whole) - 1):
        with RawClient(daemon.address) as client:
            client.socket.sendall(encode_request(build(Function.NOP)) + whole[:cut])
            client.end()
            assert codes(client.rest()) == ["", "bad-request"]
    assert neighbour.ask(build(Function.GET, b"half")).code == "not-found"


@pytest.mark.rule("Errors: `too-large`")
def test_value_of_max_value_is_taken_and_one_byte_more_is_not(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client:
        assert client.ask(set_request(b"largest", b"v" * MAX_VALUE)).code == ""
        client.send(set_request(b"larger", b"v" * (MAX_VALUE + 1)))
        assert codes(client.rest()) == ["too-large"]


def test_function_that_the_daemon_does_not_know_is_refused_and_the_connection_goes_on(
    daemon: DaemonProcess,
) -> None:
    with RawClient(daemon.address) as client:
        for function in NO_FUNCTIONS:
            assert client.ask(build(function, b"k")).code == "unknown-function"
        assert client.ask(build(Function.NOP)).code == ""


@pytest.mark.rule(
    "Framing errors: Earlier replies are sent first, and only that connection is closed"
)
def test_malformed_bytes_of_any_kind_harm_nobody_else(
    daemon: DaemonProcess, neighbour: RawClient
) -> None:
    draw = random.Random(3)
    for _ in range(60):
        data = bytearray(
            b"".join(
                encode_request(
                    build(
                        draw.randrange(22),
                        draw.randbytes(draw.randrange(6)),
                        draw.choice((None, draw.randbytes(20))),
                        flags=draw.getrandbits(16) & ~(0x180 | Flag.LISTEN),
                        timeout=draw.getrandbits(draw.choice((8, 40, 64))),
                        ttl=draw.choice((None, draw.getrandbits(50))),
                    )
                )
                for _ in range(draw.randrange(1, 12))
            )
        )
        for _ in range(draw.randrange(6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        with RawClient(daemon.address) as client:
            client.socket.sendall(data)
            if draw.random() < 0.8:
                client.end()
                client.rest()
        assert neighbour.ask(build(Function.NOP)).code == ""


def test_clients_that_vanish_harm_nobody(daemon: DaemonProcess, neighbour: RawClient) -> None:
    for number in range(40):
        client = RawClient(daemon.address)
        client.send(*(set_request(b"gone:1:0:%d-%d" % (number, n), b"v" * 900) for n in range(30)))
        if number % 2:
            # a reset instead of an end
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()
        assert neighbour.ask(build(Function.NOP)).code == ""


@pytest.mark.rule("Functions: 1 QUIT")
def test_quit_is_answered_last_and_ends_the_connection(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client:
        client.send(
            listen_request(b"nothing", identifier=5),
            build(Function.NOP, identifier=6),
            build(Function.QUIT, identifier=7),
            build(Function.NOP, identifier=8),
        )
        replies = client.rest()
        assert [reply.identifier for reply in replies] == [6, 5, 7]
        assert replies[1].pairs == []


def test_quit_just_after_work_was_leased_still_delivers_it(daemon: DaemonProcess) -> None:
    for number in range(30):
        domain = b"quit%d" % number
        with RawClient(daemon.address) as client, RawClient(daemon.address) as other:
            client.send(listen_request(domain, identifier=5), build(Function.NOP))
            assert client.reply().code == ""
            other.send(set_request(domain + b":1:0:x"))
            client.send(build(Function.QUIT, identifier=7))
            first, last = client.rest()
            assert (first.identifier, last.identifier) == (5, 7)
            assert other.reply().code == ""
            if not first.pairs:
                # the QUIT was faster
                assert other.ask(build(Function.NEXT, domain)).pairs


def test_next_that_waits_is_woken_by_another_clients_set(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client, RawClient(daemon.address) as other:
        client.send(listen_request(b"wake", identifier=9), build(Function.NOP, identifier=10))
        assert client.reply().identifier == 10
        assert other.ask(set_request(b"wake:1:0:x", b"now")).code == ""
        reply = client.reply()
        assert reply.identifier == 9
        assert reply.pairs
        assert reply.pairs[0].value == b"now"
        assert reply.timeout


def test_next_that_waits_is_woken_by_time_and_not_before(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client:
        due = unique_timestamp() + 300_000
        assert client.ask(set_request(b"later:1:%d:x" % due)).code == ""
        reply = client.ask(listen_request(b"later"))
        assert reply.pairs
        assert time.time_ns() // 1000 >= due
        assert reply.timestamp >= due


def test_next_that_waits_is_woken_by_a_lease_that_is_released_or_runs_out(
    daemon: DaemonProcess,
) -> None:
    with RawClient(daemon.address) as client, RawClient(daemon.address) as other:
        key = b"lease:1:0:x"
        assert client.ask(set_request(key)).code == ""
        token = client.ask(build(Function.NEXT, b"lease", timeout=1000 * SECOND)).timeout
        other.send(listen_request(b"lease", timeout=300_000), build(Function.NOP))
        assert other.reply().pairs is None
        give_back = build(Function.RELEASE, key, flags=Flag.WORKED_ON, timeout=token)
        assert client.ask(give_back).code == ""
        second = other.reply()
        assert second.pairs
        assert second.timeout is not None
        # nobody finishes that one: it runs out
        third = client.ask(listen_request(b"lease"))
        assert third.pairs
        assert third.timestamp >= second.timeout
        lost = build(Function.DELETE, key, flags=Flag.WORKED_ON, timeout=second.timeout)
        assert other.ask(lost).code == "lease-lost"


def test_next_that_waits_ends_with_its_ttl(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client:
        before = time.time_ns() // 1000
        reply = client.ask(listen_request(b"never", ttl=200_000))
        assert reply.code == ""
        assert reply.pairs == []
        assert reply.timestamp >= before + 200_000


@pytest.mark.parametrize("reset", [False, True])
def test_next_delivers_nothing_to_a_client_that_died_waiting(
    daemon: DaemonProcess, reset: bool
) -> None:
    domain = b"died%d" % reset
    client = RawClient(daemon.address)
    client.send(listen_request(domain), build(Function.NOP))
    assert client.reply().code == ""
    if reset:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    with RawClient(daemon.address) as other:
        # the daemon reads the end of the first connection before what comes after it
        for _ in range(3):
            assert other.ask(build(Function.NOP)).code == ""
        assert other.ask(set_request(domain + b":1:0:x")).code == ""
        assert other.ask(build(Function.NEXT, domain)).pairs


def test_requests_that_wait_on_one_connection_are_bounded(daemon: DaemonProcess) -> None:
    with RawClient(daemon.address) as client, RawClient(daemon.address) as other:
        over = 10
        client.send(*[listen_request(b"many")] * (WAITS_PER_CONNECTION_MAX + over))
        assert codes(client.reply() for _ in range(over)) == ["busy"] * over
        other.send(listen_request(b"many"), build(Function.NOP))
        assert other.reply().pairs is None


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.rule(
    "Replies: order and backpressure: The daemon stops reading from a client that does not read"
)
def test_memory_of_a_flood_without_reading_is_bounded_and_others_are_served(tmp_path: Path) -> None:
    with (
        DaemonProcess(tmp_path, own_interpreter=True) as daemon,
        RawClient(daemon.address) as other,
    ):
        value = b"x" * 1_000_000
        assert other.ask(set_request(b"big", value)).code == ""
        before = rss_bytes(daemon.pid)
        # a value, which GET ignores, makes them more than the sockets' buffers hold
        get = encode_request(build(Function.GET, b"big", b"y" * 200, flags=Flag.DATA))
        with RawClient(daemon.address, receive_bytes=4096) as greedy:
            # 100,000 requests whose replies are 100 GB
            flood = get * 100_000
            greedy.socket.settimeout(1.0)
            sent = 0
            try:
                while sent < len(flood):
                    sent += greedy.socket.send(flood[sent : sent + 65536])
            except TimeoutError:
                pass
            assert sent < len(flood), "the daemon went on reading"
            for number in range(200):
                assert other.ask(set_request(b"a:1:0:%d" % number)).code == ""
            assert rss_bytes(daemon.pid) - before < 64 * 1024 * 1024
            greedy.socket.settimeout(60.0)
            for _ in range(20):
                reply = greedy.reply()
                assert reply.pairs
                assert reply.pairs[0].value == value
        assert other.ask(build(Function.NOP)).code == ""


@pytest.mark.rule(
    "Request, client to daemon: identifier",
    "Replies: order and backpressure: Replies come in the order of the requests",
)
def test_pipeline_of_100000_requests_is_answered_in_order(daemon: DaemonProcess) -> None:
    count = 100_000
    with RawClient(daemon.address) as client:
        before = rss_bytes(daemon.pid)
        requests = [build(Function.NOP, identifier=number & 0xFFFF) for number in range(count)]
        sender = threading.Thread(target=client.send, args=requests)
        sender.start()
        for number in range(count):
            assert client.reply().identifier == number & 0xFFFF
        sender.join()
        assert rss_bytes(daemon.pid) - before < 64 * 1024 * 1024


def test_backpressure_stops_reading_from_a_client_that_does_not_read_its_replies(
    tmp_path: Path,
) -> None:
    with (
        DaemonProcess(tmp_path) as daemon,
        RawClient(daemon.address) as other,
        RawClient(daemon.address, receive_bytes=4096) as lazy,
    ):
        waits = [listen_request(b"a", timeout=1000 * SECOND)] * 50
        value = b"x" * 100_000
        for number in range(400):
            if number % 20 == 0:
                lazy.send(*waits)
            assert other.ask(set_request(b"a:1:0:%d" % number, value)).code == ""
        reply = other.ask(build(Function.NEXT, b"a"))
        assert reply.pairs, "everything was handed out to a client that does not read"
        handed_out = 0
        while handed_out < 50:
            told = lazy.reply()
            # replies leave in the order in which they were made: also where more than 64 waited
            assert told.pairs or told.code == "busy"
            handed_out += bool(told.pairs)


@pytest.mark.rule("Errors: `busy`")
def test_connections_over_the_limit_get_busy(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--max-connections", "3") as daemon:
        clients = [RawClient(daemon.address) for _ in range(3)]
        for client in clients:
            assert client.ask(build(Function.NOP)).code == ""
        with RawClient(daemon.address) as refused:
            assert codes(refused.rest()) == ["busy"]
        clients.pop().socket.close()
        while True:
            with RawClient(daemon.address) as again:
                again.send(build(Function.QUIT))
                if codes(again.rest()) == [""]:
                    break
        for client in clients:
            assert client.ask(build(Function.NOP)).code == ""
            client.socket.close()


def test_connections_leave_files_open_for_the_log(tmp_path: Path) -> None:
    """With fewer files than max-connections needs, the log still gets its segments."""
    ready = tmp_path / "ready"
    command = (
        f"ulimit -n 200; exec {quote(installed('fastjournald'))} --cmdlog-path {tmp_path}/log "
        f"--listen 127.0.0.1:0 --ready-file {ready} --cmdlog-seg-size 4096"
    )
    process = subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    clients = []
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        address = ready.read_text().strip()
        first = RawClient(address)
        clients.append(first)
        # who has asked nothing makes room for others
        assert first.ask(build(Function.NOP)).code == ""
        clients += [RawClient(address) for _ in range(300)]
        for number in range(100):
            assert first.ask(set_request(b"a:1:0:%d" % number, b"v" * 200)).code == ""
        assert first.ask(build(Function.SNAPSHOT)).code == ""
    finally:
        process.terminate()
        for client in clients:
            client.socket.close()
        _, said = process.communicate(timeout=START_S)
    assert process.returncode == 0, said
    assert "event=fewer-connections" in said
    assert "Traceback" not in said
