"""Round trips of foreign journals: records of both binlog versions, and exports of any entries."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fastjournal.foreign.beanstalkd import (
    VERSION_BYTES,
    BinlogRecord,
    BinlogVersion,
    JobState,
    encode_change,
    encode_end,
    encode_job,
    encode_version,
    read_record,
    read_version,
)
from fastjournal.foreign.formats import Format
from fastjournal.foreign.items import domain_of
from fastjournal.foreign.journal_files import WindowedFile
from fastjournal.keys import journal_key_of
from fastjournal.limits import INSTANT_MAX
from fastjournal.testing.disk import SimulatedDisk
from fastjournal.testing.logs import SegmentBuilder
from fastjournal.testing.workq_rules import assert_workq_accepts
from tests.format.foreign_exports import NOW, Target, Work, each_target, exported

VERSIONS: tuple[BinlogVersion, ...] = (7, 5)
SECOND = 1_000_000
U32, U64 = 2**32 - 1, 2**64 - 1
NANOSECONDS_MAX = 2**63 - 1
PUT_SECONDS_MAX = U32
"""Largest delay and time to run of beanstalkd's put command."""


def up_to(largest: int) -> st.SearchStrategy[int]:
    edges = st.sampled_from((0, 1, 255, 256, 2**31, U32, 2**63, U64))
    return st.one_of(st.integers(0, largest), edges.filter(lambda number: number <= largest))


@st.composite
def records(draw: st.DrawFn) -> tuple[BinlogVersion, list[tuple[BinlogRecord, bytes]]]:
    """Return a version, and records with their bodies."""
    version = draw(st.sampled_from(VERSIONS))
    times = up_to(NANOSECONDS_MAX // 1000 if version == 7 else U64)
    one = st.builds(
        BinlogRecord,
        offset=st.just(0),
        end=st.just(0),
        tube=st.binary(max_size=200),
        id=up_to(U64).map(lambda number: max(number, 1)),
        pri=up_to(U32),
        delay_us=times,
        ttr_us=times,
        body_bytes=st.integers(2, 1 << 30),
        created_us=times,
        deadline_us=times,
        reserves=up_to(U32),
        timeouts=up_to(U32),
        releases=up_to(U32),
        buries=up_to(U32),
        kicks=up_to(U32),
        state=st.sampled_from([state for state in JobState if state != JobState.DELETED]),
        body_at=st.just(0),
    )
    return version, draw(st.lists(st.tuples(one, st.binary(max_size=300)), max_size=5))


@given(records())
def test_records_of_both_binlog_versions_are_read_as_they_were_written(
    drawn: tuple[BinlogVersion, list[tuple[BinlogRecord, bytes]]],
) -> None:
    version, written = drawn
    data = encode_version(version)
    for record, body in written:
        full = bool(record.tube)
        data += encode_job(record, body, version) if full else encode_change(record, version)
    disk = SimulatedDisk()
    disk.create("/binlog.1").write(data + encode_end(version) + b"rubbish")
    file = WindowedFile(disk, "/binlog.1")
    assert read_version(file) == version
    offset = VERSION_BYTES
    for record, body in written:
        found = read_record(file, offset, version)
        assert found is not None
        size = len(body) + 2 if record.tube else record.body_bytes
        place = {"offset": offset, "end": found.end, "body_at": found.body_at}
        assert found == record._replace(body_bytes=size, **place)
        if record.tube:
            assert data[found.body_at : found.end] == body + b"\r\n"
        offset = found.end
    assert offset == len(data)
    assert read_record(file, offset, version) is None


DOMAINS = (
    b"a",
    b"a.b",
    b"a_b_e8a9d8d4",
    b"-",
    b"-x",
    b"_x_b597a201",
    b"a:b",
    b"%",
    b"fj.d.a",
    b"\xff\0\r\n /~",
    "\u00e4".encode(),
    b"t" * 200,
    b"t" * 201,
    b"t" * 300,
    b"u" * 1000,
)


@st.composite
def works(draw: st.DrawFn) -> list[Work]:
    """Return distinct work of few domains."""
    instants = st.one_of(
        st.sampled_from((0, 1, NOW - 1, NOW, NOW + 1, NOW + 10**9 * SECOND, 2**63, INSTANT_MAX)),
        st.integers(0, INSTANT_MAX),
    )
    one = st.builds(
        Work,
        domain=st.sampled_from(DOMAINS).map(domain_of),
        priority=st.sampled_from((0, 1, 127, 128, 129, 255)),
        instant=instants,
        value=st.one_of(st.sampled_from((b"", b"\r\n", b"\r\n\r\n", b"\0")), st.binary()),
        expires=st.sampled_from((0, NOW + 1, NOW + SECOND, NOW + 10**9 * SECOND, INSTANT_MAX)),
        buried=st.booleans(),
    )
    return draw(st.lists(one, max_size=12))


def as_held(work: Work, to: Target) -> Work | None:
    """Return work without its domain, as far as a format holds it; None: it is left out."""
    work = work._replace(domain=b"")
    if to.format is Format.KESTREL:
        instant = min(work.instant, NOW) // 1000 * 1000
        expires = work.expires // 1000 * 1000
        held = work._replace(priority=128, instant=instant, expires=expires)
        return None if work.buried else held
    if to.format is Format.BEANSTALKD:
        # a buried job has no deadline in beanstalkd
        instant = 0 if work.buried else min(work.instant, NOW + PUT_SECONDS_MAX * SECOND)
        return work._replace(instant=instant, expires=0)
    begins = max(work.instant, NOW)
    life = (work.expires or INSTANT_MAX) - begins
    expires = begins + min(max(life // 1000 * 1000, 1000), 30 * 86_400 * SECOND)
    return work._replace(instant=max(work.instant, 1), expires=min(expires, INSTANT_MAX))


@each_target
@given(drawn=works())
@settings(max_examples=60)
def test_export_of_any_entries_is_read_back_as_far_as_the_format_holds_them(
    to: Target, drawn: list[Work]
) -> None:
    log = SegmentBuilder(0)
    log.complete(log.entry(b"done:128:0:x"), b"done:128:0:x")
    for number, work in enumerate(drawn):
        key = journal_key_of(work.domain, f"{number}", work.instant, work.priority)
        job = log.entry(
            key,
            value=work.value,
            arrival=number,
            not_before=work.instant,
            expires=work.expires,
            timestamp=1 + number,
        )
        if work.buried:
            log.fail(job, b"why")
    held = [as_held(work, to) for work in drawn]
    # a Kestrel without items has no file to be read
    assume(to.format is not Format.KESTREL or any(held))
    done, found, disk = exported(to, log)
    expected = [work for work in held if work is not None]
    instants = to.format is not Format.BEANSTALKD
    shown = [
        work._replace(domain=b"", instant=work.instant if instants or not work.buried else 0)
        for work in found
    ]
    assert Counter(shown) == Counter(expected)
    assert (done.read, done.written) == (len(drawn), len(found))
    before = Counter(work.domain for work in drawn if as_held(work, to) is not None)
    after = Counter(work.domain for work in found)
    assert sorted(before.values()) == sorted(after.values())
    # the new name of a domain may be that of another one, which then has a new name too
    renamed = done.not_carried.get("domains_renamed", 0)
    assert len(before.keys() - after.keys()) <= renamed <= len(before)
    if to.format is Format.WORKQ:
        segments = [name for name in disk.listdir("/out") if name.endswith(".log")]
        data = [disk.read(f"/out/{name}") for name in segments]
        assert len(assert_workq_accepts(data, now_us=NOW).jobs) == done.written
