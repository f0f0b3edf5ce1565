"""Service notification: states, and pings of the watchdog."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from fastjournal import program
from fastjournal.program import notify, watchdog_seconds
from fastjournald.process import ping_watchdog


@pytest.mark.parametrize("abstract", [False, True])
def test_state_arrives_at_the_named_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"@fastjournal-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify("READY=1\nSTATUS=ready")
        assert manager.recv(100) == b"READY=1\nSTATUS=ready"


@pytest.mark.parametrize("address", [None, "", "relative", "/no/such/socket"])
def test_sdnotify_does_nothing_without_a_manager(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


def test_watchdog_of_a_stalled_event_loop_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pings(manager: socket.socket) -> int:
        count = 0
        with suppress(BlockingIOError):
            while manager.recv(100) == b"WATCHDOG=1":
                count += 1
        return count

    def stall(manager: socket.socket) -> list[int]:
        # ten intervals, in which the event loop stays in this turn
        time.sleep(0.2)
        return [pings(manager)]

    async def ping_around_a_stall(manager: socket.socket) -> list[int]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping_watchdog, 0.02)
            before = 0
            while not before:
                await trio.sleep(0.01)
                before = pings(manager)
            counts = [before, *stall(manager)]
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        return [*counts, pings(manager)]

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        before, during, after = trio.run(ping_around_a_stall, manager)
    assert before > 0
    assert during == 0
    assert after > 0


def test_watchdog_does_not_wait_for_a_service_manager_that_takes_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        sent = [notify("WATCHDOG=1", wait=False) for _ in range(10_000)]
        assert sent[0]
        assert not sent[-1], "the queue of a datagram socket is full"
        monkeypatch.setattr(program, "WAIT_S", 0.01)
        assert not notify("READY=1"), "a reload ends all the same"


@pytest.mark.parametrize(
    ("microseconds", "process", "seconds"),
    [
        (None, None, None),
        ("30000000", None, 30.0),
        ("500000", 0, 0.5),
        ("30000000", 1, None),
    ],
)
def test_watchdog_interval_is_that_of_the_service_manager(
    monkeypatch: pytest.MonkeyPatch,
    microseconds: str | None,
    process: int | None,
    seconds: float | None,
) -> None:
    pid = None if process is None else str(os.getpid() + process)
    for name, value in (("WATCHDOG_USEC", microseconds), ("WATCHDOG_PID", pid)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert watchdog_seconds() == seconds
