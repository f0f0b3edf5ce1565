"""Promise 6 as a table: every kind of damage, by every way on which somebody meets it.

For each kind: ``fj-cli log verify`` and ``log repair --dry-run`` name it and change nothing;
``recover`` and a daemon refuse it, changing nothing, or deal with it by themselves; ``recover``
with repair, ``fj-cli log repair`` and ``fastjournald --repair`` name the same, keep the same bytes
aside and leave the same entries, in a log with which nothing is wrong any more.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fastjournal.clock import SystemClock
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, TIME_BYTES, Command
from fastjournal.cmdlog.format.operation_records import Batch
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError
from fastjournal.protocol.constants import Flag, Function
from fastjournal.testing.logs import SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts
from fj_cli.main import run as run_cli
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, run_to_its_end, set_request

ENTRIES = 60
_ASIDE = re.compile(r"([0-9]{9}\.log)\.(torn|damaged)-(.+)")
_FOUND = re.compile(r"event=found kind=(\S+) path=(\S+) offset=(\d+) bytes=(\d+)")


class Log:
    """A log directory to be damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def segments(self) -> list[Path]:
        """All of them, ascending."""
        return sorted(self.path.glob("[0-9]" * 9 + ".log"))

    def records(self, segment: Path) -> list[tuple[int, int, int]]:
        """Offset, offset of the body and end of each record."""
        return list(scan_segment(segment.read_bytes()).spans())

    def edit(self, number: int, at: int, data: bytes) -> None:
        """Write over the bytes at an offset of the segment at this index."""
        path = self.segments[number]
        before = path.read_bytes()
        path.write_bytes(before[:at] + data + before[at + len(data) :])

    def flip(self, number: int, at: int) -> None:
        """Flip a bit of a byte."""
        self.edit(number, at, bytes((self.segments[number].read_bytes()[at] ^ 4,)))

    def cut(self, number: int, at: int) -> None:
        """Leave the first ``at`` bytes (negative: from the end)."""
        path = self.segments[number]
        path.write_bytes(path.read_bytes()[:at])

    def grow(self, number: int, data: bytes) -> None:
        """Append bytes."""
        path = self.segments[number]
        path.write_bytes(path.read_bytes() + data)

    def add(self, data: bytes) -> None:
        """Add a segment behind the last one."""
        number = int(self.segments[-1].name[:9]) + 1
        (self.path / f"{number:09d}.log").write_bytes(data)

    def drop(self, number: int) -> None:
        """Remove the segment at this index."""
        self.segments[number].unlink()


Damage = Callable[[Log], None]
EARLIER, MIDDLE, LAST = 1, 2, -1
RECORD = 4
"""Index of the record that is damaged: not the first, with others behind it."""


def in_record(number: int, part: str) -> Damage:
    """Flip a bit in a part of a record."""

    def change(log: Log) -> None:
        start, body, end = log.records(log.segments[number])[RECORD]
        at = {"time": start + 5, "size": start + TIME_BYTES, "body": body + 60, "crc": end - 1}
        log.flip(number, at[part])

    return change


def size_says(number: int, size: bytes) -> Damage:
    """Let a record's size lie; it is two bytes long."""

    def change(log: Log) -> None:
        start = next(
            start
            for start, body, _ in log.records(log.segments[number])[RECORD:-1]
            if body - start - TIME_BYTES == len(size)
        )
        log.edit(number, start + TIME_BYTES, size)

    return change


def cut_between(number: int) -> Damage:
    """Leave some whole records of a segment."""

    def change(log: Log) -> None:
        log.cut(number, log.records(log.segments[number])[RECORD][2])

    return change


def other_records(number: int) -> Damage:
    """Put a removal back that cleaning may have taken away."""

    def change(log: Log) -> None:
        before = SegmentBuilder(None, ids_from=1 << 90)
        before.simple(Command.DELETE, before.job_id())
        log.grow(number, bytes(before.data)[len(SEGMENT_HEADER) :])

    return change


def zeros(number: int) -> Damage:
    def change(log: Log) -> None:
        start, _, end = log.records(log.segments[number])[RECORD]
        log.edit(number, start, bytes(end - start))

    return change


def all_of(*changes: Damage) -> Damage:
    def change(log: Log) -> None:
        for each in changes:
            each(log)

    return change


def flip_in_last_record(log: Log) -> None:
    log.flip(LAST, log.records(log.segments[LAST])[-1][1] + 40)


def two_places(log: Log) -> None:
    records = log.records(log.segments[MIDDLE])
    log.flip(MIDDLE, records[2][1] + 30)
    log.flip(MIDDLE, records[5][1] + 30)


def unfinished_group(log: Log) -> None:
    group = SegmentBuilder(None, ids_from=1 << 90)
    group.operation(Batch(2))
    group.entry(b"half:1:0:x", timestamp=1)
    log.grow(LAST, bytes(group)[len(SEGMENT_HEADER) :])


def half_a_snapshot(log: Log) -> None:
    partial = log.path / "snapshots" / "20200101T000000.000000Z.partial"
    partial.mkdir(parents=True)
    (partial / "MANIFEST.json").write_bytes(b"{")


def foreign_files(log: Log) -> None:
    (log.path / "notes.txt").write_bytes(b"by somebody")
    (log.path / "1.log").write_bytes(b"wqwq")
    (log.path / "000000001.log.bak").write_bytes(b"wqwq")
    (log.path / "000000099.dir").mkdir()


def leftover(log: Log) -> None:
    (log.path / f"{log.segments[EARLIER].name}.rw").write_bytes(b"half of it")


def copied(number: int, over: int) -> Damage:
    """Put a copy of a segment in the place of another."""

    def change(log: Log) -> None:
        log.segments[over].write_bytes(log.segments[number].read_bytes())

    return change


KINDS: dict[str, tuple[Damage, list[str]]] = {
    # what a crash leaves
    "a tail that is cut in a body": (lambda log: log.cut(LAST, -30), ["torn"]),
    "a tail that is cut in a checksum": (lambda log: log.cut(LAST, -1), ["torn"]),
    "a tail of zeros": (lambda log: log.grow(LAST, bytes(5000)), ["torn"]),
    "a tail of anything": (lambda log: log.grow(LAST, b"\1anything" * 9), ["torn"]),
    "a flipped bit in the last record": (flip_in_last_record, ["torn"]),
    "an unfinished group": (unfinished_group, ["unfinished"]),
    "an unfinished group and a torn record": (
        all_of(unfinished_group, lambda log: log.grow(LAST, b"\1\0")),
        ["torn", "unfinished"],
    ),
    "half a roll: no byte": (lambda log: log.add(b""), ["empty"]),
    "half a roll: half a header": (lambda log: log.add(SEGMENT_HEADER[:5]), ["empty"]),
    "half a roll: a header": (lambda log: log.add(SEGMENT_HEADER), ["empty"]),
    "half a roll: zeros": (lambda log: log.add(bytes(300)), ["empty"]),
    "half a roll: half a record": (lambda log: log.add(SEGMENT_HEADER + b"\1\0\0"), ["empty"]),
    "half a rewrite": (leftover, ["leftover"]),
    "half a snapshot": (half_a_snapshot, []),
    "files of others": (foreign_files, []),
    # damage in an earlier segment
    **{
        f"a flipped bit in the {part} of a record": (in_record(MIDDLE, part), ["damaged"])
        for part in ("time", "size", "body", "crc")
    },
    "a size that is too small": (size_says(MIDDLE, b"\x90\1"), ["damaged"]),
    "a size that is too large": (size_says(MIDDLE, b"\xf0\5"), ["damaged"]),
    "a size beyond the file": (size_says(MIDDLE, b"\xff\x7f"), ["damaged"]),
    "a size that is no number": (size_says(MIDDLE, b"\xff\xff"), ["damaged"]),
    "a record of zeros": (zeros(MIDDLE), ["damaged"]),
    "a flipped bit in the header": (lambda log: log.flip(MIDDLE, 2), ["damaged"]),
    "a header of another version": (lambda log: log.edit(MIDDLE, 7, b"\2"), ["damaged"]),
    "an earlier segment that is cut": (lambda log: log.cut(EARLIER, -30), ["damaged"]),
    "an earlier segment with a tail of zeros": (
        lambda log: log.grow(EARLIER, bytes(512)),
        ["damaged"],
    ),
    "an earlier segment without a byte": (lambda log: log.cut(EARLIER, 0), ["damaged"]),
    "an earlier segment with half a header": (lambda log: log.cut(EARLIER, 3), ["damaged"]),
    "two places in one segment": (two_places, ["damaged", "damaged"]),
    "two places in two segments": (
        all_of(in_record(EARLIER, "body"), in_record(MIDDLE, "crc")),
        ["damaged", "damaged"],
    ),
    # damage in the last segment, with valid records behind it
    **{
        f"a flipped bit in the {part} of a record of the last segment": (
            in_record(LAST, part),
            ["damaged"],
        )
        for part in ("time", "size", "body", "crc")
    },
    "a size beyond the file in the last segment": (size_says(LAST, b"\xff\x7f"), ["damaged"]),
    "a flipped bit in the last header": (lambda log: log.flip(LAST, 0), ["damaged"]),
    "damage and a torn tail": (
        all_of(in_record(LAST, "body"), lambda log: log.cut(LAST, -9)),
        ["damaged", "damaged"],
    ),
    # segments that are whole records, but not all of them
    "a segment cut to its header": (lambda log: log.cut(MIDDLE, 8), ["differs"]),
    "a first segment cut between two records": (cut_between(0), ["differs"]),
    "two segments cut between two records, and a torn tail": (
        all_of(cut_between(EARLIER), cut_between(MIDDLE), lambda log: log.cut(LAST, -1)),
        ["differs", "differs", "torn"],
    ),
    "an older copy of a segment": (other_records(MIDDLE), ["differs"]),
    # segments that are copies of others
    "a copy of the segment behind it": (copied(MIDDLE + 1, MIDDLE), ["damaged"]),
    "a copy of the segment before it": (copied(EARLIER, MIDDLE), ["damaged"]),
    "a copy of the first segment": (copied(0, MIDDLE), ["damaged"]),
    "a copy of the last segment": (copied(LAST, MIDDLE), ["damaged"]),
    "a first segment that is a copy of another": (copied(MIDDLE, 0), ["damaged"]),
    "a last segment that is a copy of another": (copied(MIDDLE, LAST), ["damaged"]),
    "a copy of a segment behind the last": (
        lambda log: log.add(log.segments[MIDDLE].read_bytes()),
        ["damaged"],
    ),
    "a copy of a segment, and damage behind it": (
        all_of(copied(MIDDLE + 1, MIDDLE), in_record(MIDDLE + 1, "body")),
        ["damaged", "damaged"],
    ),
    "a last segment that is a copy of another, and a cut one": (
        all_of(copied(MIDDLE, LAST), cut_between(EARLIER)),
        ["damaged", "differs"],
    ),
    "a copy of a torn last segment": (
        all_of(lambda log: log.cut(LAST, -9), copied(LAST, EARLIER)),
        ["damaged", "torn"],
    ),
    "a cut segment, and damage behind it": (
        all_of(cut_between(EARLIER), in_record(MIDDLE, "body")),
        ["damaged", "differs"],
    ),
    # segments that are missing
    "a missing segment": (lambda log: log.drop(MIDDLE), ["missing"]),
    "a missing first segment": (lambda log: log.drop(0), ["missing"]),
    "two missing segments": (
        all_of(lambda log: log.drop(MIDDLE + 1), lambda log: log.drop(EARLIER)),
        ["missing", "missing"],
    ),
    "a missing segment and damage behind it": (
        all_of(in_record(MIDDLE + 1, "body"), lambda log: log.drop(MIDDLE)),
        ["damaged", "missing"],
    ),
    "everything at once": (
        all_of(
            *(in_record(MIDDLE, "size"), leftover, half_a_snapshot, foreign_files),
            *(lambda log: log.drop(0), lambda log: log.add(SEGMENT_HEADER[:3])),
        ),
        ["damaged", "empty", "leftover", "missing"],
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a daemon that was stopped: entries, leases and completions in several segments."""
    directory = tmp_path_factory.mktemp("sound")
    with DaemonProcess(directory, "--cmdlog-seg-size", "4096") as daemon:
        with RawClient(daemon.address) as client:
            for number in range(ENTRIES):
                asked = set_request(b"a:1:0:%02d" % number, b"v" * 200, uri=b"u%02d" % number)
                assert client.ask(asked).code == ""
                if number % 10 == 5:
                    leased = client.ask(build(Function.NEXT, b"a", count=2))
                    done = leased.pairs[0].key if leased.pairs else b""
                    ended = build(
                        Function.DELETE, done, flags=Flag.WORKED_ON, timeout=leased.timeout
                    )
                    assert client.ask(ended).code == ""
        assert daemon.stop() == 0
    assert len(list(daemon.log_path.glob("*.log"))) > 4
    return daemon.log_path


def files(log: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(log)): path.read_bytes() for path in log.rglob("*") if path.is_file()
    }


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run ``fj-cli``; return its exit code and what it found."""
    capsys.readouterr()
    code = run_cli(["log", *arguments, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def told(log: Path, found: list[tuple[str, str, int, int]]) -> list[tuple[str, str, int, int]]:
    """Return kind, name of the file, offset and length of findings, sorted."""
    return sorted((kind, Path(path).name, at, length) for kind, path, at, length in found)


def kept(log: Path) -> list[tuple[str, str, str, bytes]]:
    """Return what was kept aside: segment, why, from where, and the bytes."""
    found = []
    for name, data in sorted(files(log).items()):
        match = _ASIDE.fullmatch(name)
        if match is not None:
            segment, why, where = match.groups()
            found.append((segment, why, where if why == "damaged" else "", data))
    return found


def live(log: Path) -> object:
    """Return the entries of a log, and see that nothing is wrong with it and workq takes it."""
    # of what is copied, as a start may change what it finds
    copy = shutil.copytree(log, log.parent / "looked-at")
    recovered = recover(OsDisk(), str(copy), now_us=SystemClock().now_us())
    assert recovered.diagnostics == []
    assert_workq_accepts(path.read_bytes() for path in Log(copy).segments)
    shutil.rmtree(copy)
    state = recovered.state
    tombs = {key: tomb.timestamp for key, tomb in state.tombstones.items()}
    jobs = sorted(
        (job.key, job.uri, job.value, job.timestamp, job.token, job.attempts, job.starts)
        for job in state.jobs.values()
    )
    return jobs, tombs


@pytest.mark.parametrize("kind", list(KINDS))
def test_damage_is_found_refused_and_repaired_the_same_in_all_ways(
    kind: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = KINDS[kind]

    def damaged(name: str) -> Path:
        (tmp_path / name).mkdir()
        copy = shutil.copytree(sound, tmp_path / name / "log")
        change(Log(copy))
        return copy

    # what changes nothing
    log = damaged("refused")
    before = files(log)
    code, found = cli(capsys, "verify", str(log))
    findings = told(log, [(f["kind"], f["file"], f["offset"], f["bytes"]) for f in found])
    assert [finding[0] for finding in findings] == expected
    assert code == bool(expected)
    code, would = cli(capsys, "repair", str(log), "--dry-run")
    assert told(log, [(f["kind"], f["file"], f["offset"], f["bytes"]) for f in would]) == findings
    assert code == bool(expected)
    assert files(log) == before
    refuses = bool({"damaged", "missing", "differs"} & set(expected))
    if refuses:
        with pytest.raises(LogCorruptError) as caught:
            recover(OsDisk(), str(log), now_us=SystemClock().now_us())
        code, said = run_to_its_end(log.parent)
        assert code == 74
        assert caught.value.path is not None
        named = f"{caught.value.path} at offset {caught.value.offset}"
        for what in ("code=log-corrupt", named, "--repair"):
            assert what in said
        after = files(log)
        # the daemon tidies up half a snapshot before it looks at the log
        assert {name: after.get(name) for name in before if "partial" not in name} == {
            name: data for name, data in before.items() if "partial" not in name
        }

    # what repairs
    by_library = damaged("library")
    recovered = recover(OsDisk(), str(by_library), now_us=SystemClock().now_us(), repair=True)
    assert (
        told(by_library, [(f.kind, f.path, f.offset, f.bytes) for f in recovered.diagnostics])
        == findings
    )
    by_cli = damaged("cli")
    code, done = cli(capsys, "repair", str(by_cli))
    assert code == 0
    assert told(by_cli, [(f["kind"], f["file"], f["offset"], f["bytes"]) for f in done]) == findings
    by_daemon = damaged("daemon")
    with DaemonProcess(by_daemon.parent, "--repair") as daemon:
        assert daemon.stop() == 0
    lines = _FOUND.findall(daemon.said())
    assert (
        told(by_daemon, [(k, path, int(at), int(size)) for k, path, at, size in lines]) == findings
    )
    assert kept(by_library) == kept(by_cli) == kept(by_daemon)
    assert live(by_library) == live(by_cli) == live(by_daemon)
    for finding, asides in ((f, kept(by_cli)) for f in findings if f[0] == "damaged" and f[3]):
        _, name, at, size = finding
        assert (name, "damaged", str(at), before[name][at : at + size]) in asides
    for name, data in before.items():
        if not name.endswith((".log", ".rw", ".lock")) and "partial" not in name:
            assert files(by_daemon)[name] == data, "a file of somebody else was touched"


def test_damage_table_holds_every_kind_of_diagnostic() -> None:
    from fj_cli.commands.log import _DOES

    assert {kind for _, kinds in KINDS.values() for kind in kinds} == set(_DOES)
    assert all(
        earlier <= later for _, kinds in KINDS.values() for earlier, later in pairwise(kinds)
    )
