"""Round trips of foreign journals: records of both binlog versions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastjournal.foreign.beanstalkd_records import (
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
from fastjournal.foreign.windowed_file import WindowedFile
from fastjournal.testing.disk import SimulatedDisk

VERSIONS: tuple[BinlogVersion, ...] = (7, 5)
U32, U64 = 2**32 - 1, 2**64 - 1
NANOSECONDS_MAX = 2**63 - 1


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
