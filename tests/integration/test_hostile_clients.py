"""Hostile clients, several at once: malformed, cut and random frames, refusals, ends in between.

``make sanitize`` runs them for a minute (FJ_HOSTILE_SECONDS) against a daemon whose native leaves
have sanitizers; that ends with the first access to memory that is not its own.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fastjournal.clock import unique_timestamp
from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import ErrorCode, Flag, Function
from fastjournal.protocol.messages import Request
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, codes, listen_request, set_request
from tests.integration.test_daemon_protocol import BAD_FRAMES, MAX_VALUE
from tests.integration.test_error_codes import OPTIONS, SCENARIOS
from tests.property.fuzzing import changed, kept, seeds
from tests.unit.test_protocol_malformed import MALFORMED_REQUESTS

SECONDS = float(os.environ.get("FJ_HOSTILE_SECONDS", "3"))
CLIENTS = 8
PIECES_MAX = 6

FRAMES = [
    *((data, code) for data, code, _ in BAD_FRAMES.values()),
    # those that are refused here too: this daemon has another --max-value
    *(
        (bytes.fromhex(text), code)
        for _, text, code, _ in MALFORMED_REQUESTS
        if code != "too-large"
    ),
]
SCENARIO_CODES = sorted(SCENARIOS.keys() - OPTIONS.keys() - {ErrorCode.SHUTTING_DOWN})
"""Errors that a daemon without options returns to one connection, and stays."""


class HostileClient:
    """One client after another, each with another choice of what is wrong.

    Args:
        daemon: Its victim.
        draw: All choices.
    """

    def __init__(self, daemon: DaemonProcess, draw: random.Random) -> None:
        self._daemon = daemon
        self._draw = draw
        self._random = [*seeds("requests"), *(data for _, data in kept("requests"))]

    def attack(self) -> None:
        """Connect once and do one of them."""
        choices: list[Callable[[RawClient], None]] = [
            *(self._send_a_malformed_frame, self._send_a_changed_frame, self._cut_a_frame),
            *(self._ask_for_an_error, self._hang_up_with_replies_owed),
        ]
        with RawClient(self._daemon.address) as client:
            self._draw.choice(choices)(client)

    def _valid(self, *, number_max: int = 40) -> list[Request]:
        number = self._draw.randrange(number_max)
        make = self._draw.choice((self._set, self._delete, self._next, self._nop))
        mixed = self._draw.random() < 0.5
        if not mixed:
            return [make() for _ in range(number)]
        return [
            self._draw.choice((self._set, self._delete, self._next, self._nop))()
            for _ in range(number)
        ]

    def _key(self) -> bytes:
        return b"hostile%d:1:0:%d" % (self._draw.randrange(3), self._draw.randrange(20))

    def _set(self) -> Request:
        value = self._draw.randbytes(self._draw.choice((0, 1, 100, 300)))
        uri = self._draw.choice((None, b"uri%d" % self._draw.randrange(9)))
        return set_request(self._key(), value, uri=uri)

    def _delete(self) -> Request:
        flags = self._draw.choice((0, Flag.OVERWRITE, Flag.WORKED_ON))
        return build(
            Function.DELETE, self._key(), flags=flags, timeout=self._draw.choice((None, 1))
        )

    def _next(self) -> Request:
        return build(Function.NEXT, b"hostile%d" % self._draw.randrange(3), count=3)

    def _nop(self) -> Request:
        return build(Function.NOP)

    def _send(self, client: RawClient, data: bytes) -> None:
        """Send it in pieces: what the daemon receives at once ends anywhere."""
        ends = sorted(self._draw.randrange(len(data) + 1) for _ in range(PIECES_MAX - 1))
        for begin, end in zip([0, *ends], [*ends, len(data)], strict=True):
            client.socket.sendall(data[begin:end])

    def _send_a_malformed_frame(self, client: RawClient) -> None:
        data, code = self._draw.choice(FRAMES)
        valid = self._valid()
        self._send(client, b"".join(map(encode_request, valid)) + data)
        assert codes(client.rest())[len(valid) :] == [code]

    def _send_a_changed_frame(self, client: RawClient) -> None:
        frame = changed(self._draw, self._draw.choice(self._random), self._random)
        self._send(client, b"".join(map(encode_request, self._valid())) + frame)
        client.end()
        known = {code.value for code in ErrorCode} | {""}
        # an end of its own, for a QUIT or what it cannot read, may meet bytes that it never read
        with suppress(ConnectionResetError):
            assert known.issuperset(codes(client.rest()))

    def _cut_a_frame(self, client: RawClient) -> None:
        valid = self._valid()
        frame = encode_request(self._set())
        cut = frame[: self._draw.randrange(1, len(frame))]
        self._send(client, b"".join(map(encode_request, valid)) + cut)
        client.end()
        assert codes(client.rest())[len(valid) :] == ["bad-request"]

    def _ask_for_an_error(self, client: RawClient) -> None:
        code = self._draw.choice(SCENARIO_CODES)
        # others do the same at this moment: another refusal is as good
        with suppress(AssertionError):
            SCENARIOS[code](self._daemon, client)

    def _hang_up_with_replies_owed(self, client: RawClient) -> None:
        requests = [*self._valid(number_max=300), listen_request(b"nothing")]
        self._send(client, b"".join(map(encode_request, requests)))
        if self._draw.random() < 0.5:
            # a reset: what was not read is lost at once
            linger = struct.pack("ii", 1, 0)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


@pytest.mark.parametrize("native", ["native", "pure"])
def test_daemon_answers_its_clients_beside_hostile_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    if native == "pure":
        if "FJ_HOSTILE_SECONDS" in os.environ:
            pytest.skip("no native leaves to be sanitized")
        monkeypatch.setenv("FASTJOURNAL_NATIVE", "0")
    options = ("--max-value", str(MAX_VALUE), "--cmdlog-sync", "os")
    with DaemonProcess(tmp_path, *options) as daemon, ThreadPoolExecutor(CLIENTS) as pool:
        end = time.monotonic() + SECONDS

        def attack(seed: int) -> int:
            hostile = HostileClient(daemon, random.Random(seed))
            attacks = 0
            while time.monotonic() < end:
                hostile.attack()
                attacks += 1
            return attacks

        attackers = [pool.submit(attack, seed) for seed in range(CLIENTS)]
        with RawClient(daemon.address) as neighbour:
            while not all(attacker.done() for attacker in attackers):
                key = b"neighbour/%d" % unique_timestamp()
                assert neighbour.ask(set_request(key)).code == ""
                assert neighbour.ask(build(Function.GET, key)).code == ""
                assert neighbour.ask(build(Function.DELETE, key)).code == ""
        assert sum(attacker.result() for attacker in attackers) > CLIENTS
        assert daemon.stop() == 0, daemon.said()
        for word in ("Traceback", "Sanitizer", "runtime error"):
            assert word not in daemon.said(), daemon.said()
