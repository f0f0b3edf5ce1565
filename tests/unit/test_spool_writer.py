"""The writer: keys, files, slots, locks, threads and forks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from fastjournal.errors import BadRequestError, SpoolFailedError
from fastjournal.keys import build_journal_key, parse_journal_key
from fastjournal.limits import FURTHER_SLOTS_MAX, MOVED_US_MAX
from fastjournal.protocol import Flag, Function, Request, ValueType, encode_request
from fastjournal.spool import Spool, spool_status
from fastjournal.spool.format import FILE_HEADER
from fastjournal.testing.clock import ManualClock
from tests.unit.spool_files import EIGHT, requests_in


def all_requests(directory: Path) -> list[Request]:
    return [r for path in sorted(directory.glob("*.fjs")) for r in requests_in(path)]


def test_append_is_a_persistent_set_under_the_canonical_key(tmp_path: Path) -> None:
    with Spool(tmp_path / "s", clock=ManualClock(EIGHT)) as spool:
        key = spool.append(
            domain="crawl",
            uri="http://a/",
            priority=7,
            not_before_us=EIGHT + 99,
            value=b"v",
            ttl=5,
            expires=EIGHT / 1e6 + 6,
        )
    (request,) = requests_in(tmp_path / "s" / "20261120T080000Z.fjs")
    assert (request.function, request.key, request.second_key) == (Function.SET, key, b"http://a/")
    assert (request.value_type, request.value) == (ValueType.BUFFER, b"v")
    assert (request.timestamp, request.timeout, request.ttl) == (
        EIGHT,
        EIGHT + 6_000_000,
        5_000_000,
    )
    assert request.flags & Flag.PERSIST
    assert not request.flags & Flag.OVERWRITE
    assert key.startswith(b"crawl:007:%d:" % (EIGHT + 99))


def test_append_of_a_unique_value_with_a_delay(tmp_path: Path) -> None:
    with Spool(tmp_path / "s", clock=ManualClock(EIGHT)) as spool:
        key = spool.append(domain="mails", unique="7", delay=60, value={"to": "ann"})
        with pytest.raises(BadRequestError, match="exclude each other"):
            spool.append(domain="mails", unique="7", uri="u")
        with pytest.raises(BadRequestError, match="exclude each other"):
            spool.append(domain="mails", delay=1, not_before_us=EIGHT)
        with pytest.raises(BadRequestError, match="reserved"):
            spool.append(domain="mails", uri="unique:mails:7")
    (request,) = requests_in(tmp_path / "s" / "20261120T080000Z.fjs")
    assert (request.key, request.second_key) == (key, b"unique:mails:7")
    assert key.startswith(b"mails:128:%d:" % (EIGHT + 60_000_000))
    assert (request.value_type, request.value) == (ValueType.STRING, b'{"to":"ann"}')


def test_append_under_a_whole_key_replaces_a_waiting_job_and_no_leased_one(tmp_path: Path) -> None:
    key = build_journal_key("mails", "daily", priority=3)
    with Spool(tmp_path / "s", clock=ManualClock(EIGHT)) as spool:
        assert spool.append(key=key, value="v") == key
        spool.append(key=key.decode(), unique="7")
        spool.append(queue="mails", id="other")
        for wrong, text in EXCLUDED_BY_KEY:
            with pytest.raises(BadRequestError, match=text):
                spool.append(key=key, **wrong)
        with pytest.raises(BadRequestError, match="is no key of a job"):
            spool.append(key="mails:300:0:x")
        with pytest.raises(BadRequestError, match="two names of one argument"):
            spool.append(queue="mails", domain="mails")
    first, second, third = requests_in(tmp_path / "s" / "20261120T080000Z.fjs")
    assert first.flags & second.flags & (Flag.OVERWRITE | Flag.WORKED_ON | Flag.PERSIST) == (
        Flag.OVERWRITE | Flag.WORKED_ON | Flag.PERSIST
    )
    assert not third.flags & (Flag.OVERWRITE | Flag.WORKED_ON)
    assert (first.key, first.second_key, first.value) == (key, None, b"v")
    assert (second.key, second.second_key) == (key, b"unique:mails:7")
    assert third.key.startswith(b"mails:128:")


EXCLUDED_BY_KEY: list[tuple[dict[str, Any], str]] = [
    ({"queue": "mails"}, "key excludes queue"),
    ({"domain": "mails"}, "key excludes queue"),
    ({"priority": 128}, "key excludes queue, priority"),
    ({"delay": 1}, "key excludes"),
    ({"not_before": EIGHT / 1e6}, "key excludes"),
    ({"not_before_us": EIGHT}, "key excludes"),
    ({"id": "x"}, "key excludes"),
    ({"overwrite": True}, "key excludes overwrite"),
    ({"uri": "u", "unique": "7"}, "exclude each other"),
]


@pytest.mark.parametrize(
    ("value", "value_type", "data"),
    [
        (None, ValueType.VOID, b""),
        ("é", ValueType.STRING, b"\xc3\xa9"),
        (3, ValueType.INTEGER, b"\0\0\0\0\0\0\0\x03"),
        (True, ValueType.BOOLEAN, b"\x01"),
    ],
)
def test_values_that_are_not_bytes_keep_their_type(
    tmp_path: Path, value: str | int | None, value_type: ValueType, data: bytes
) -> None:
    with Spool(tmp_path) as spool:
        spool.append(domain="d", value=value)
    (request,) = all_requests(tmp_path)
    assert (request.value_type, request.value[-len(data) or 8 :]) == (value_type, data)


@pytest.mark.parametrize(
    "bad",
    [
        {"domain": ""}, {"domain": "a:b"}, {"domain": "d", "priority": 256},
        {"domain": "d", "not_before": -1}, {"domain": "d", "uri": ""}, {"domain": "d\udcff"},
        {"domain": "d", "id": "\udcff"}, {"domain": "d", "uri": "\udcff"},
        {"domain": "d", "uri": "u" * 4097}, {"domain": "d", "expires": 2**64},
        {"domain": "d", "timestamp_us": -1},
    ],
)  # fmt: skip
def test_bad_argument_writes_nothing(tmp_path: Path, bad: dict[str, object]) -> None:
    with Spool(tmp_path) as spool, pytest.raises(BadRequestError):
        spool.append(**bad)  # what a caller without mypy does
    assert list(tmp_path.iterdir()) == []


def test_append_takes_any_write_and_no_question(tmp_path: Path) -> None:
    delete = Request(Function.DELETE, key=b"k", timestamp=77)
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        spool.append_request(delete)
        spool.append_request(Request(Function.DELETE, key=b"k"))
        with pytest.raises(BadRequestError, match="no write"):
            spool.append_request(Request(Function.NEXT))
    found = all_requests(tmp_path)
    assert encode_request(found[0]) == encode_request(delete)
    assert [r.timestamp for r in found] == [77, EIGHT]


def test_directory_and_files_have_their_modes_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        with Spool(tmp_path / "a" / "s", clock=ManualClock(EIGHT)) as spool:
            spool.append(domain="d")
    finally:
        os.umask(old)
    (file,) = (tmp_path / "a" / "s").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o750


def can_lock(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def hold(path: Path) -> BinaryIO:
    """Lock a slot as a program that is no forwarder, or hangs, may do."""
    if not path.exists():
        path.write_bytes(FILE_HEADER)
    file = path.open("rb")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def test_slot_that_somebody_locks_is_passed_by_a_further_slot_of_the_same_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    clock = ManualClock(EIGHT)
    with Spool(tmp_path, clock=clock) as spool:
        spool.append(domain="first")
    path, further = tmp_path / "20261120T080000Z.fjs", tmp_path / "20261120T080001Z.fjs"
    with hold(path), Spool(tmp_path, clock=clock) as spool:
        spool.append(domain="second")
        waited = len(waits)
        clock.instant_us += 3_599_999_999
        spool.append(domain="third")
        assert len(waits) == waited, "it waits once"
        assert not can_lock(further)
        clock.instant_us += 1
        spool.append(domain="fourth")
    assert sum(waits) <= 0.1
    names = [[parse_journal_key(r.key)[0] for r in requests_in(p)] for p in (path, further)]
    assert names == [[b"first"], [b"second", b"third"]]
    assert (tmp_path / "20261120T090000Z.fjs").exists()
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        spool.append(domain="fifth")
    assert len(requests_in(path)) == 2, "it is not locked any more"


def test_slot_and_all_further_ones_that_somebody_locks_are_an_error_that_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with contextlib.ExitStack() as held, Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        for second in range(FURTHER_SLOTS_MAX + 1):
            held.enter_context(hold(tmp_path / f"20261120T08000{second}Z.fjs"))
        with pytest.raises(SpoolFailedError, match=r"T080003Z.fjs: .*locked") as caught:
            spool.append(domain="d")
        assert caught.value.hint
        held.close()
        spool.append(domain="d")
    assert sum(waits) <= 0.1
    assert len(all_requests(tmp_path)) == 1


def test_append_wakes_the_forwarder_and_none_is_needed(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / "s"  # longer than an address of a socket may be
    with Spool(deep, durable=True) as spool:
        spool.append(domain="nobody listens")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        here = os.open(deep, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/wake")
        os.close(here)
        listener.setblocking(False)
        with Spool(deep) as spool:
            for _ in range(100):
                spool.append(domain="d")  # far more than the socket's queue holds
        assert listener.recv(10) == b"\x01"
    assert len(all_requests(deep)) == 101


def test_closed_spool_refuses(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.close()
    with pytest.raises(BadRequestError, match="closed"):
        spool.append(domain="d")


@pytest.mark.parametrize("what", ["slot", "directory"])
def test_append_notices_within_a_second_that_its_slot_was_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """Its link count is still 1: only the path tells."""
    clock = ManualClock(EIGHT)
    directory = tmp_path / "spool"
    with Spool(directory, clock=clock) as spool:
        for uri in ("that makes it", "that looks at it"):
            spool.append(domain="d", uri=uri)
        (slot,) = directory.glob("*.fjs")
        before = slot.stat().st_size
        if what == "slot":
            moved = slot.rename(tmp_path / slot.name)
        else:
            moved = directory.rename(tmp_path / "moved") / slot.name
        spool.append(domain="d", uri="not noticed yet")
        assert moved.stat().st_size > before
        for _ in range(3):
            clock.instant_us += MOVED_US_MAX
            spool.append(domain="d", uri="noticed")
        clock.instant_us -= 2 * MOVED_US_MAX
        spool.append(domain="d", uri="the clock was set back")
    assert spool_status(directory).pending == 4
    (told,) = [record.message for record in caplog.records]
    assert told.startswith(f"{slot} was moved away while it was written to")
