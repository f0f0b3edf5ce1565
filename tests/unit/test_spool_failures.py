"""The writer where it cannot write: full disks, full spools, failed syncs."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from fastjournal.errors import SpoolFailedError, SpoolFullError
from fastjournal.spool import DeadDirectory, Reason, Spool
from fastjournal.spool.appending import slot_files
from fastjournal.spool.appending.appendfile import AppendFile, ShortWriteError
from fastjournal.spool.bulk import Work, WorkEncoder
from fastjournal.spool.drop_in import write_drop_in
from fastjournal.spool.format import RECORD_OVERHEAD
from fastjournal.spool.forwarder_status import write_forwarder_status
from fastjournal.spool.slots import survey
from fastjournal.testing.clock import ManualClock
from fj_forwarder.reporting import Connection, Reporter
from tests.unit.spool_files import EIGHT, a_delivery, requests_in


@contextmanager
def file_size_limit(count: int) -> Iterator[None]:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_hidden_files_of_killed_producers_count_until_they_are_linked(tmp_path: Path) -> None:
    hidden = tmp_path / ".20261120T080000Z-web1.fjs.tmp"
    hidden.write_bytes(bytes(3900))
    with Spool(tmp_path, spool_bytes_max=4000, clock=ManualClock(EIGHT)) as spool:
        with pytest.raises(SpoolFullError):
            spool.append(domain="d", value=b"x" * 100)
        hidden.unlink()
        spool.append(domain="d", value=b"x" * 100)
        hidden.write_bytes(bytes(2000))
        os.link(hidden, tmp_path / "20261120T080000Z-web1.fjs")  # one file of 2,000 bytes
        spool.append(domain="d", value=b"x" * 1000)


def test_slot_that_cannot_be_looked_at_stops_no_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One damaged inode: its bytes are not known, and the others count."""
    bad, other = (tmp_path / f"20261120T070000Z-{name}.fjs" for name in ("bad", "other"))
    for path in (bad, other):
        path.write_bytes(bytes(3000))
    stat = os.stat

    def fail(path: Any, **named: Any) -> os.stat_result:
        if path == str(bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, **named)

    monkeypatch.setattr(os, "stat", fail)
    with Spool(tmp_path, spool_bytes_max=4000, clock=ManualClock(EIGHT)) as spool:
        spool.append(domain="d", value=b"x" * 100)
        with pytest.raises(SpoolFullError):
            spool.append(domain="d", value=b"x" * 1000)


def test_directory_whose_entries_have_no_types_names_a_slot_that_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        name = "20261120T070000Z.fjs"
        path = str(tmp_path / name)

        def is_file(self, *, follow_symlinks: bool) -> bool:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", lambda _: nullcontext([Entry()]))
    assert [slot.name for slot in survey(tmp_path).slots] == [Entry.name]


class Seconds:
    """Module ``time`` for a quota: each sum of the files takes a second."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sums = 0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        self.sums += 1
        return self.sums / 2


def test_full_spool_of_very_many_files_is_not_summed_at_each_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = Seconds()
    monkeypatch.setattr(slot_files, "time", seconds)
    other = tmp_path / "20261120T080000Z-web1.fjs"
    other.write_bytes(bytes(3900))
    with Spool(tmp_path, spool_bytes_max=4000, clock=ManualClock(EIGHT)) as spool:
        for _ in range(10):
            with pytest.raises(SpoolFullError):
                spool.append(domain="d", value=b"x" * 100)
        assert seconds.sums == 2  # two calls for one sum
        other.unlink()
        seconds.now_s += 30
        spool.append(domain="d", value=b"x" * 100)


def test_short_write_is_an_error_and_becomes_an_erased_record(tmp_path: Path) -> None:
    path = tmp_path / "20261120T080000Z.fjs"
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        spool.append(domain="before")
        size = path.stat().st_size
        with file_size_limit(size + 60), pytest.raises(SpoolFailedError) as caught:
            spool.append(domain="torn", value=b"x" * 5000)
        assert caught.value.path == str(path)
        assert path.stat().st_size == size + 60
        spool.append(domain="after")
    domains = [r.key.split(b":")[0] for r in requests_in(path)]
    assert domains == [b"before", b"after"]


@pytest.mark.parametrize("durable", [False, True])
def test_short_write_of_many_records_keeps_and_counts_those_that_are_whole(
    tmp_path: Path, durable: bool
) -> None:
    """The forwarder may have taken them: to write them again would send them twice."""
    path = tmp_path / "20261120T080000Z.fjs"
    encoder, counts = WorkEncoder(), list[int]()
    records = [encoder.encode(Work(domain="d", id=str(number)))[1] for number in range(5)]
    with Spool(tmp_path, clock=ManualClock(EIGHT), durable=durable) as spool:
        spool.append(domain="before")
        for cut in (0, 1, 20):
            size = path.stat().st_size
            room = size + len(b"".join(records[:3])) + cut
            with file_size_limit(room), pytest.raises(SpoolFailedError, match="ENOSPC"):
                spool.append_records(records, counts.append)
            assert path.stat().st_size == room
            assert path.read_bytes()[room - cut :].count(b"P") == 0
            if 0 < cut < RECORD_OVERHEAD:
                os.truncate(path, room - cut)
        spool.append(domain="after")
    assert counts == [3, 3, 3]
    ids = [request.key.rpartition(b":")[2] for request in requests_in(path)[1:-1]]
    assert ids == [b"0", b"1", b"2"] * 3


def test_failed_sync_of_a_short_write_counts_for_the_appends_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells a failure once, and calls the bytes written from then on."""
    record = WorkEncoder().encode(Work(domain="d"))[1]
    file = AppendFile(str(tmp_path), EIGHT // 1_000_000, durable=True)
    number = file.append(record)
    syncs: list[int] = []

    def sync(descriptor: int) -> None:
        syncs.append(descriptor)
        if len(syncs) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", sync)
    with file_size_limit(file.size + len(record) + 1), pytest.raises(ShortWriteError) as caught:
        file.append(record * 2)
    assert caught.value.whole_bytes == 0
    assert len(syncs) == 1
    with pytest.raises(SpoolFailedError, match="EIO"):
        file.sync(number)
    file.close()


def test_write_of_no_byte_at_all_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with Spool(tmp_path, clock=ManualClock(EIGHT)) as spool:
        spool.append(domain="before")
        path = tmp_path / "20261120T080000Z.fjs"
        with file_size_limit(path.stat().st_size), pytest.raises(SpoolFailedError) as caught:
            spool.append(domain="refused")
        assert "EFBIG" in str(caught.value)
        assert caught.value.hint
    assert len(requests_in(path)) == 1


def test_slot_of_another_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "20261120T080000Z.fjs"
    path.write_bytes(b"fjsp\0\0\0\x02whatever")
    with (
        Spool(tmp_path, clock=ManualClock(EIGHT)) as spool,
        pytest.raises(SpoolFailedError) as caught,
    ):
        spool.append(domain="d")
    assert "version" in str(caught.value)
    assert path.read_bytes() == b"fjsp\0\0\0\x02whatever"


def test_directory_that_cannot_be_made_names_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolFailedError) as caught:
        Spool(tmp_path / "file")
    assert caught.value.path == str(tmp_path / "file")


def test_failed_sync_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with Spool(tmp_path, durable=True) as spool, pytest.raises(SpoolFailedError, match="EIO"):
        spool.append(domain="d")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_hard_link_that_is_refused_names_the_file_system_and_leaves_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with Spool(tmp_path) as spool:
        for write in (
            lambda: spool.append(domain="d"),
            lambda: write_drop_in(tmp_path, "name", []),
        ):
            with pytest.raises(SpoolFailedError, match="allows hard links") as caught:
                write()
            assert (caught.value.path or "").endswith(".fjs")
            assert os.listdir(tmp_path) == []
        monkeypatch.undo()
        spool.append(domain="d")
    assert len(os.listdir(tmp_path)) == 1


# --- files of dead/ -------------------------------------------------------------------------------
# Files of ``dead/`` that could not be written: they keep no space.


REASON = Reason("20261120T080000Z.fjs", 8, 3, "damage", "torn", "a torn write", 5)


@pytest.mark.parametrize("call", ["fsync", "rename", "fchmod"])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_dead_letter_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, calls_before: int
) -> None:
    """Its first file, or its second one."""
    left, real = calls_before, getattr(os, call)

    def full(*args: object, **options: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **options)

    dead = DeadDirectory(tmp_path)
    (tmp_path / "dead").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(SpoolFailedError, match="ENOSPC"):
            dead.put(b"raw", REASON)
    assert [path.name for path in (tmp_path / "dead").glob("*.tmp")] == []
    name = dead.put(b"raw", REASON)
    assert sorted(os.listdir(tmp_path / "dead")) == [f"{name}.bin", f"{name}.json"]


def test_start_of_the_forwarder_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    a_delivery(tmp_path)[0].close()
    assert os.listdir(tmp_path) == [], "no dead/ is made for that"
    dead = tmp_path / "dead"
    dead.mkdir()
    names = ["a.bin", "a.json", "notes.tmp", "b.bin.tmp.gz"]
    for name in [*names, "b.bin.tmp", "b.json.tmp"]:
        (dead / name).write_bytes(b"x")
    (dead / "c.bin.tmp").mkdir()
    (dead / "d.json.tmp").symlink_to(dead / "a.json")
    a_delivery(tmp_path)[0].close()
    assert sorted(os.listdir(dead)) == sorted([*names, "c.bin.tmp", "d.json.tmp"])


def test_status_file_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, engine = a_delivery(tmp_path)
    reporter = Reporter(str(tmp_path), run, engine, Connection([]))
    reporter.write()
    assert reporter.latest is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(SpoolFailedError, match="ENOSPC"):
        write_forwarder_status(str(tmp_path), reporter.latest)
    assert os.listdir(tmp_path) == ["status.json"]
    run.close()
