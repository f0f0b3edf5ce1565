"""The writer: keys, files, slots, locks, threads and forks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from fastjournal.errors import BadRequestError, SpoolFailedError
from fastjournal.keys import parse_journal_key
from fastjournal.limits import FURTHER_SLOTS_MAX, MOVED_US_MAX
from fastjournal.protocol import Flag, Function, Request, ValueType, encode_request
from fastjournal.spool import Spool, slots, spool_status
from fastjournal.spool.format import FILE_HEADER
from fastjournal.testing.clock import ManualClock
from tests.unit.spool_files import EIGHT, HOUR_US, requests_in


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


def test_default_key_is_the_same_only_for_the_same_uri_and_timestamp(tmp_path: Path) -> None:
    with Spool(tmp_path / "one") as one, Spool(tmp_path / "two") as two:
        first = one.append(domain="d", uri="u", timestamp_us=5)
        assert two.append(domain="d", uri="u", timestamp_us=5) == first
        assert two.append(domain="d", uri="u", timestamp_us=6) != first
        assert two.append(domain="d", uri="w", timestamp_us=5) != first
        assert one.append(domain="d", timestamp_us=5) != two.append(domain="d", timestamp_us=5)
        mine = one.append(domain="d", id="mine", not_before_us=0)
        assert mine == b"d:128:0000000000000000:mine"


def test_work_that_names_no_instant_is_due_when_it_was_written(tmp_path: Path) -> None:
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        first, second = spool.append(domain="d", id="x"), spool.append(domain="d", id="x")
        given = spool.append(domain="d", id="x", timestamp_us=7)
    assert first == b"d:128:%016d:x" % EIGHT
    assert second == b"d:128:%016d:x" % (EIGHT + 1)
    assert given == b"d:128:%016d:x" % 7


def test_timestamp_is_used_once_though_the_clock_does_not_advance(tmp_path: Path) -> None:
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        keys = {spool.append(domain="d", uri="same") for _ in range(100)}
    assert len(keys) == 100
    assert len({r.timestamp for r in all_requests(tmp_path)}) == 100


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
        {"domain": ""},
        {"domain": "a:b"},
        {"domain": "d", "priority": 256},
        {"domain": "d", "not_before": -1},
        {"domain": "d", "uri": ""},
        {"domain": "d\udcff"},
        {"domain": "d", "id": "\udcff"},
        {"domain": "d", "uri": "\udcff"},
        {"domain": "d", "uri": "u" * 4097},
        {"domain": "d", "expires": 2**64},
        {"domain": "d", "timestamp_us": -1},
    ],
)
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


def test_directories_above_a_new_spool_are_durable_each_in_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = slots.sync_directory

    def note(directory: str) -> None:
        sync(directory)
        synced.append(directory)

    monkeypatch.setattr(slots, "sync_directory", note)
    Spool(tmp_path / "a" / "b" / "s").close()
    assert synced == [str(tmp_path / where) for where in ("", "a", "a/b")]


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


def test_slot_has_its_file_and_the_writer_changes_its_lock_with_it(tmp_path: Path) -> None:
    clock = ManualClock(EIGHT + HOUR_US - 1)
    with Spool(tmp_path, clock=clock) as spool:
        spool.append(domain="d")
        old = tmp_path / "20261120T080000Z.fjs"
        assert not can_lock(old)
        clock.instant_us += 1
        spool.append(domain="d")
        assert can_lock(old)
        assert not can_lock(tmp_path / "20261120T090000Z.fjs")
    assert can_lock(tmp_path / "20261120T090000Z.fjs")
    assert [p.name for p in sorted(tmp_path.iterdir())] == [old.name, "20261120T090000Z.fjs"]


def can_lock(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_slots_of_another_length_are_named_after_their_start(tmp_path: Path) -> None:
    with Spool(tmp_path, slot_seconds=10, clock=ManualClock(EIGHT + 25_000_000)) as spool:
        spool.append(domain="d")
    assert [p.name for p in tmp_path.iterdir()] == ["20261120T080020Z.fjs"]


def test_file_that_is_unlinked_while_the_writer_waits_for_its_lock_gets_no_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, goes_on = threading.Event(), threading.Event()

    def sleep(_: float) -> None:
        waits.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(time, "sleep", sleep)
    path = tmp_path / "20261120T080000Z.fjs"
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        spool.append(domain="first")
    with path.open("rb") as file, Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=spool.append, kwargs={"domain": "second"})
        thread.start()
        assert waits.wait(60)
        path.unlink()
        fcntl.flock(file, fcntl.LOCK_UN)
        goes_on.set()
        thread.join()
    (request,) = requests_in(path)
    assert parse_journal_key(request.key)[0] == b"second"  # it is a journal key


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


def test_durable_append_is_synced_and_so_is_the_name_of_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def note(sync: Callable[[int], None]) -> Callable[[int], None]:
        def noting(descriptor: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        return noting

    clock = ManualClock(EIGHT)
    with Spool(tmp_path, durable=True, clock=clock) as spool, Spool(tmp_path) as fast:
        monkeypatch.setattr(os, "fdatasync", note(os.fdatasync))
        monkeypatch.setattr(os, "fsync", note(os.fsync))
        fast.append(domain="d")
        assert synced == []
        spool.append(domain="d")
        spool.append(domain="d")
    file = str(tmp_path / "20261120T080000Z.fjs")
    assert synced == [str(tmp_path), file, file]


def test_threads_share_a_writer(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:

        def append() -> None:
            for _ in range(200):
                spool.append(domain="d", uri="u")

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = all_requests(tmp_path)
    assert len({r.key for r in found}) == len(found) == 800


FORKER = """
import os, sys
from fastjournal.spool import Spool
spool = Spool(sys.argv[1])
spool.append(domain="parent")
children = []
for _ in range(3):
    children.append(os.fork())
    if children[-1] == 0:
        for _ in range(50):
            spool.append(domain="child")
        os._exit(0)
for _ in range(50):
    spool.append(domain="parent")
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_parent_and_forked_children_append_at_once(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKER, str(tmp_path)], check=True)
    found = all_requests(tmp_path)
    keys = [r.key for r in found]
    assert len(set(keys)) == len(keys)
    assert sum(key.startswith(b"parent") for key in keys) == 51
    assert sum(key.startswith(b"child") for key in keys) == 150


def test_closed_spool_refuses(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.close()
    with pytest.raises(BadRequestError, match="closed"):
        spool.append(domain="d")


def test_names_of_slots_round_trip_and_others_are_none() -> None:
    assert slots.slot_name(EIGHT // 1_000_000) == "20261120T080000Z.fjs"
    assert slots.parse_slot_name("20261120T080000Z.fjs") == EIGHT // 1_000_000
    for name in (
        "",
        "wake",
        "20261120T080000Z.fjx",
        "20261332T080000Z.fjs",
        "2026112T0800000Z.fjs",
    ):
        assert slots.parse_slot_name(name) is None, name


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
