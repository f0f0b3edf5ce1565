"""Every error code comes out of a real daemon: one scenario for each, none is left out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fastjournal.clock import unique_timestamp
from fastjournal.protocol.constants import QUERY_SHIFT, ErrorCode, Flag, Function, Query, ValueType
from fastjournal.protocol.messages import Reply, Request
from tests.functions import NO_FUNCTION
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, listen_request, set_request

HOUR = 3_600_000_000
TOKEN = b"a-token-for-one-prefix"
REGEX = Query.REGEX << QUERY_SHIFT
CURSOR = Query.CURSOR << QUERY_SHIFT

OPTIONS: dict[ErrorCode, tuple[str, ...]] = {
    ErrorCode.TOO_LARGE: ("--max-value", "100"),
    ErrorCode.READ_ONLY: ("--min-free-bytes", str(2**50)),
    ErrorCode.NOT_PERSISTED: ("--snapshot-dir", "{directory}/a-file/snapshots"),
    ErrorCode.NOT_READABLE: ("--memory-limit", "1"),
    ErrorCode.AUTH_REQUIRED: ("--auth-tokens", "{directory}/tokens.toml"),
    ErrorCode.AUTH_FAILED: ("--auth-tokens", "{directory}/tokens.toml"),
    ErrorCode.FORBIDDEN: ("--auth-tokens", "{directory}/tokens.toml"),
    ErrorCode.BUSY: ("--max-connections", "1"),
}
"""Options that a scenario needs."""

Scenario = Callable[[DaemonProcess, RawClient], Reply]


def asks(*requests: Request) -> Scenario:
    """Requests of one client; the last one fails."""

    def scenario(_daemon: DaemonProcess, client: RawClient) -> Reply:
        for request in requests[:-1]:
            assert client.ask(request).error == ""
        return client.ask(requests[-1])

    return scenario


def typed(function: int, key: bytes, kind: ValueType, value: bytes) -> Request:
    request = build(function, key, value)
    request.value_type = kind
    return request


def lock_and_ask(request: Request) -> Scenario:
    """Somebody else has locked the key."""

    def scenario(daemon: DaemonProcess, client: RawClient) -> Reply:
        with RawClient(daemon.address) as owner:
            client.ask(set_request(request.key))
            assert owner.ask(build(Function.LOCK, request.key)).error == ""
            return client.ask(request)

    return scenario


def another_version(_daemon: DaemonProcess, client: RawClient) -> Reply:
    client.socket.sendall(b"FJ\0\2" + bytes(20))
    return client.reply()


def one_connection_too_many(daemon: DaemonProcess, client: RawClient) -> Reply:
    # who has asked nothing would make room
    assert client.ask(build(Function.NOP)).code == ""
    with RawClient(daemon.address) as second:
        return second.reply()


def wait_and_stop(daemon: DaemonProcess, client: RawClient) -> Reply:
    client.send(listen_request(b"nothing-here"), build(Function.NOP))
    client.reply()
    os.kill(daemon.pid, signal.SIGTERM)
    return client.reply()


def store_without_rights(_daemon: DaemonProcess, client: RawClient) -> Reply:
    assert client.ask(build(Function.AUTH, value=TOKEN)).error == ""
    assert client.ask(set_request(b"mine:key")).error == ""
    return client.ask(set_request(b"theirs:key"))


def read_what_is_damaged(daemon: DaemonProcess, client: RawClient) -> Reply:
    """A bit flips under the daemon, in a value that is on the disk only."""
    value = b"a value that has left memory " * 10
    assert client.ask(set_request(b"damaged", value)).error == ""
    # what is durable leaves memory with the request after it
    assert client.ask(build(Function.NOP)).error == ""
    (segment,) = daemon.log_path.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(value)] ^= 1
    segment.write_bytes(data)
    return client.ask(build(Function.GET, b"damaged", flags=Flag.DATA))


JOB = b"codes:1:0:"
SCENARIOS: dict[ErrorCode, Scenario] = {
    ErrorCode.NOT_FOUND: asks(build(Function.GET, b"missing")),
    ErrorCode.EXISTS: asks(set_request(b"exists", at=1), set_request(b"exists", at=2)),
    ErrorCode.STALE: asks(set_request(b"stale", at=2), set_request(b"stale", at=1)),
    ErrorCode.WORKED_ON: asks(
        set_request(b"worked-on"),
        build(Function.GET, b"worked-on", timeout=HOUR),
        build(Function.GET, b"worked-on", timeout=HOUR),
    ),
    ErrorCode.LEASE_LOST: asks(
        set_request(JOB),
        build(Function.NEXT, b"codes"),
        build(Function.DELETE, JOB, flags=Flag.WORKED_ON, timeout=1),
    ),
    ErrorCode.LOCKED: lock_and_ask(build(Function.LINK, b"locked", uri=b"other")),
    ErrorCode.NOT_OWNER: lock_and_ask(build(Function.UNLOCK, b"not-owner")),
    ErrorCode.TYPE_MISMATCH: asks(set_request(b"mismatch"), build(Function.NOT, b"mismatch")),
    ErrorCode.OVERFLOW: asks(
        typed(Function.SET, b"overflow", ValueType.INTEGER, b"\x7f"),
        typed(Function.ADD, b"overflow", ValueType.INTEGER, b"\x01"),
    ),
    ErrorCode.BAD_KEY: asks(set_request(b"")),
    ErrorCode.BAD_VALUE: asks(build(Function.SET, b"no-value")),
    ErrorCode.BAD_REGEX: asks(build(Function.GET, b"(", flags=REGEX)),
    ErrorCode.BAD_CURSOR: asks(build(Function.GET, b"no cursor", flags=CURSOR)),
    ErrorCode.BAD_REQUEST: asks(build(Function.TOUCH, b"no-ttl")),
    ErrorCode.TOO_LARGE: asks(set_request(b"large", b"v" * 100), set_request(b"more", b"v" * 101)),
    ErrorCode.UNKNOWN_FUNCTION: asks(build(NO_FUNCTION, b"key")),
    ErrorCode.UNSUPPORTED_VERSION: another_version,
    ErrorCode.CLOCK_SKEW: asks(set_request(b"early", at=unique_timestamp() + 24 * HOUR)),
    ErrorCode.READ_ONLY: asks(set_request(b"key")),
    ErrorCode.NOT_PERSISTED: asks(build(Function.SNAPSHOT)),
    ErrorCode.NOT_READABLE: read_what_is_damaged,
    ErrorCode.AUTH_REQUIRED: asks(build(Function.NOP), set_request(b"key")),
    ErrorCode.AUTH_FAILED: asks(build(Function.AUTH, value=b"a-token-that-is-wrong")),
    ErrorCode.FORBIDDEN: store_without_rights,
    ErrorCode.BUSY: one_connection_too_many,
    ErrorCode.SHUTTING_DOWN: wait_and_stop,
}


def test_error_codes_each_have_a_scenario() -> None:
    assert set(SCENARIOS) == set(ErrorCode)


@pytest.mark.parametrize("code", ErrorCode, ids=str)
def test_daemon_answers_with_the_code(code: ErrorCode, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    tokens.write_text(
        f"[[token]]\nname = 'one'\ntoken = '{TOKEN.decode()}'\n"
        "rights = ['read', 'write']\nprefixes = ['mine:']\n"
    )
    options = [option.format(directory=tmp_path) for option in OPTIONS.get(code, ())]
    with DaemonProcess(tmp_path, *options) as daemon, RawClient(daemon.address) as client:
        reply = SCENARIOS[code](daemon, client)
    assert reply.code == code
    assert reply.error.isascii()
