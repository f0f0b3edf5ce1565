"""Wake socket of a spool: one byte stands for the records of a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from socket import socket
from types import SimpleNamespace

import pytest

from fastjournal.spool import inotify, wake
from fastjournal.spool.slots import WAKE_NAME
from fastjournal.spool.wake import GATHER_S, Waker, bind_wake_socket
from fj_forwarder.forwarder import WakeSources


def received(bound: socket) -> int:
    """Return the number of bytes that wait."""
    found = 0
    while True:
        try:
            bound.recv(1)
        except BlockingIOError:
            return found
        found += 1


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(wake, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return lambda now_s: setattr(clock, "now_s", now_s)


def test_wake_sends_one_byte_for_the_appends_of_a_millisecond(
    tmp_path: Path, at: Callable[[float], None]
) -> None:
    waker = Waker(str(tmp_path))
    with bind_wake_socket(str(tmp_path)) as bound:
        for now_s in (1000.0, 1000.0001, 1000.0009):
            at(now_s)
            waker.wake()
        assert received(bound) == 1
        at(1000.0 + 1.01 * GATHER_S)
        waker.wake()
        assert received(bound) == 1
    waker.close()


def test_wake_finds_the_next_forwarder_with_the_append_after_one_that_failed(
    tmp_path: Path, at: Callable[[float], None]
) -> None:
    waker = Waker(str(tmp_path))
    with bind_wake_socket(str(tmp_path)) as bound:
        waker.wake()
        assert received(bound) == 1
    (tmp_path / WAKE_NAME).unlink()
    with bind_wake_socket(str(tmp_path)) as bound:
        at(1000.002)
        waker.wake()  # the socket of the forwarder that has gone
        at(1000.0021)
        waker.wake()
        assert received(bound) == 1
    waker.close()


def test_forwarder_looks_again_behind_a_byte_where_nothing_else_tells_of_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WakeSources(str(tmp_path)) as watch:
        assert [source.looks_again for source in watch.sources] == [False, False]

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify.Inotify, "add_watch", fail)
    with WakeSources(str(tmp_path)) as watch:
        assert [source.looks_again for source in watch.sources] == [True]
