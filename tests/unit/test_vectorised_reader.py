"""Vectorised reader of records: each value is that of the record by record reader."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pytest

from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    NO_TIME,
    SEGMENT_HEADER,
    TIME_BYTES,
    UNIX_SECONDS,
    Command,
    segment_name,
)
from fastjournal.cmdlog.format.operation_records import Batch, Extend, Lease, Operation
from fastjournal.cmdlog.format.records import Record, body_offset, encode_record
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.decoding import byte_arrays
from fastjournal.spark.decoding import rows as decoder
from fastjournal.spark.decoding.byte_arrays import SegmentBytes
from fastjournal.spark.decoding.rows import RecordRow
from fastjournal.spark.decoding.vectorised import chunk, vectorised_reader
from fastjournal.spark.decoding.vectorised.frames import (
    SLICES_MAX,
    SegmentSlice,
    find_frames,
    right_checksums,
    slices_of,
)
from fastjournal.spark.decoding.vectorised.vectorised_reader import read_batches
from fastjournal.spark.decoding.view_columns import READABLE, to_batch
from fastjournal.spark.storage.files import LogDirectory, SegmentFile
from fastjournal.testing.logs import SegmentBuilder, in_zone
from tests.spark.plain_reader import read_data, read_segment, segment_rows
from tests.spark.random_logs import every_record, write_random_log

NAMES = list(READABLE)
COLUMNS = list(READABLE.values())
SLICES = (2, 5)
DATA = Path(__file__).parent.parent / "format" / "data"
RECORDED = [
    DATA / "fastjournald",
    *sorted(path for path in (DATA / "workq").iterdir() if path.is_dir()),
]
"""The golden log of fastjournald, and logs of workq itself."""


SCHEMA = pa.schema([(column.name, column.arrow) for column in COLUMNS])


@pytest.fixture
def decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode the same bytes at the same place once in a test, where it is record by record."""
    decode, decoded = decoder.decode_row, dict[tuple[Any, ...], RecordRow]()

    def decode_once(
        data: bytes, segment: SegmentFile, offset: int, body: int, end: int
    ) -> RecordRow:
        place = (segment.number, offset, body, data[offset:end])
        if place not in decoded:
            decoded[place] = decode(data, segment, offset, body, end)
        # the reader writes into its row
        return copy(decoded[place])

    monkeypatch.setattr(decoder, "decode_row", decode_once)


def expected(segment: SegmentFile, files: Any, *, permissive: bool = True) -> Any:
    try:
        rows = list(read_segment(files, segment, permissive=permissive))
    except LogCorruptError as error:
        return str(error)
    return pa.Table.from_batches([to_batch(rows, COLUMNS)])


def found(
    segment: SegmentFile,
    files: Any,
    *,
    permissive: bool = True,
    names: Sequence[str] = NAMES,
    **more: Any,
) -> Any:
    try:
        batches = list(read_batches(files, segment, names, permissive=permissive, **more))
    except LogCorruptError as error:
        return str(error)
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.Table.from_batches(batches, schema).combine_chunks()


def check_slices(
    segment: SegmentFile, files: Any, oracle: Any, *, permissive: bool, numbers: Sequence[int]
) -> None:
    """Compare the rows of all slices, one behind the other, with those of the whole."""
    for slices in numbers:
        parts = [SegmentSlice(number, slices) for number in range(slices)]
        tables = [found(segment, files, permissive=permissive, part=part) for part in parts]
        errors = [table for table in tables if isinstance(table, str)]
        if isinstance(oracle, str):
            assert errors[0] == oracle
            continue
        assert not errors
        assert pa.concat_tables(tables).combine_chunks() == oracle, slices


def check_segment(
    segment: SegmentFile, files: Any, *, permissive: bool, numbers: Sequence[int] = SLICES
) -> None:
    """Compare all columns of a segment, whole and in these numbers of slices."""
    rows = found(segment, files, permissive=permissive)
    oracle = expected(segment, files, permissive=permissive)
    if rows != oracle:
        # a message that can be read
        assert isinstance(rows, pa.Table)
        assert isinstance(oracle, pa.Table)
        for name in NAMES:
            assert rows[name].to_pylist() == oracle[name].to_pylist(), name
    check_slices(segment, files, oracle, permissive=permissive, numbers=numbers)


def check(directory: Path) -> None:
    """Compare all columns of all segments, in both modes.

    Without damage the modes read the same, so each reads one number of slices.
    """
    log = LogDirectory(directory)
    for segment in log.segments:
        is_harmed = isinstance(expected(segment, log.files, permissive=False), str)
        for permissive, number in zip((True, False), SLICES, strict=True):
            numbers = SLICES if is_harmed else (number,)
            check_segment(segment, log.files, permissive=permissive, numbers=numbers)


def check_bytes(directory: Path, data: bytes) -> None:
    """Compare all columns of a log of one segment; the logs take turns in how it is sliced."""
    path = directory / segment_name(1)
    path.write_bytes(data)
    segment = SegmentFile(str(path), 1, len(data), last=True, open=False)
    numbers = (SLICES[google_crc32c.value(data) % len(SLICES)],)
    check_segment(segment, pa.fs.LocalFileSystem(), permissive=True, numbers=numbers)


def every_kind(directory: Path, seed: int) -> None:
    """Write a log with all kinds of records."""
    write_random_log(directory, seed, segments=2, records=60)


@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize(("seed", "records"), [(1, 1), (2, 7), (3, 7), (4, 99), (5, 99), (6, 99)])
def test_reader_equals_the_oracle_on_random_logs(
    tmp_path: Path, seed: int, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_kind(tmp_path, seed)
    monkeypatch.setattr(chunk, "CHUNK_RECORDS", records)
    check(tmp_path)


@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize("log", RECORDED, ids=lambda log: log.name)
def test_reader_equals_the_oracle_on_recorded_logs(log: Path) -> None:
    check(log)


def test_record_without_a_time_that_is_decoded_by_itself_has_null_as_its_time() -> None:
    """Whether nothing is in a range of numbers is found by looking at each: that takes years."""
    record = Record(Command.ADD, b"j" * 16, NO_TIME, name="a", payload=b"work")
    data = SEGMENT_HEADER + encode_record(record)
    segment = SegmentFile(segment_name(1), 1, len(data), last=True, open=False)
    (batch,) = read_data(data, segment, ["time", "time_us", "value"], permissive=False)
    assert batch.to_pylist() == [{"time": None, "time_us": None, "value": b"work"}]


def sample() -> SegmentBuilder:
    """Return a segment with each form that is decoded at once, and some that are not."""
    builder = SegmentBuilder(previous=None)
    one = builder.entry(b"web:001:5:x", uri=b"http://x", value=b"v" * 150, not_before=5)
    builder.lease([one], 77)
    builder.operation(Extend(one, 99, 0, b"", 0, b""))
    builder.complete(one, b"web:001:5:x", 7)
    builder.fail(builder.foreign(b"q", b"w"), b"\xff no")
    return builder


def of_both(
    data: bytes, names: Sequence[str], *, last: bool = True
) -> tuple[pa.Table, Callable[[], pa.Table]]:
    """Return the rows of a segment by the oracle, and a call for those of the reader."""
    segment = SegmentFile("segment", 1, len(data), last=last, open=False)
    rows = list(segment_rows(data, segment, permissive=True))
    oracle = to_batch(rows, [READABLE[name] for name in names])

    def read() -> pa.Table:
        batches = read_data(data, segment, names, permissive=True)
        schema = pa.schema([SCHEMA.field(name) for name in names])
        return pa.Table.from_batches(batches, schema)

    return pa.Table.from_batches([oracle]), read


@pytest.mark.parametrize("minutes", [0, 60, -(2**15)])
def test_reader_gives_the_same_rows_whatever_the_zone_offset_of_times(minutes: int) -> None:
    oracle, read = of_both(bytes(every_record()), NAMES)
    assert oracle.num_rows > 10
    assert read() == oracle
    oracle_in_zone, read_in_zone = of_both(in_zone(bytes(every_record()), minutes), NAMES)
    assert oracle_in_zone == oracle
    assert read_in_zone() == oracle


def test_sample_of_damage_has_every_command_and_operation() -> None:
    data = bytes(every_record())
    segment = SegmentFile("segment", 1, len(data), last=True, open=False)
    rows = list(segment_rows(data, segment, permissive=False))
    assert {row.record.command for row in rows if row.record is not None} == set(Command)
    operations = {type(row.operation) for row in rows if row.operation is not None}
    assert operations == set(get_args(Operation))
    assert {row.foreign for row in rows if row.entry is not None} == {True, False}


@pytest.mark.usefixtures("decoded_once")
def test_reader_equals_the_oracle_with_damage_at_every_byte() -> None:
    data = bytes(every_record())
    for at in range(len(data)):
        harmed = bytearray(data)
        harmed[at] ^= 1 << at % 8
        # what the damage is called costs a look at all contents
        names = ["offset", "command", *(["_corrupt", "key", "token"] * (at % 32 == 0))]
        oracle, read = of_both(bytes(harmed), names)
        assert read().combine_chunks() == oracle, at


def test_reader_equals_the_oracle_with_other_contents_at_every_byte() -> None:
    builder = every_record()
    data = bytes(builder)
    harmed, count = bytearray(SEGMENT_HEADER), 0
    for start, behind in pairwise([*builder.offsets, len(data)]):
        for at in range(start, behind - CRC_BYTES):
            if start + TIME_BYTES <= at < body_offset(data, start):
                # the record would have another length
                continue
            for change in (1 << at % 8, 0xFF):
                record = bytearray(data[start : behind - CRC_BYTES])
                record[at - start] ^= change
                harmed += record + google_crc32c.value(bytes(record)).to_bytes(4)
                count += 1
    oracle, read = of_both(bytes(harmed), NAMES, last=False)
    rows = read().combine_chunks()
    for name in NAMES:
        assert rows[name].to_pylist() == oracle[name].to_pylist(), name
    # damage side by side is one row
    assert 0.9 * count < len(rows) <= count
    assert 0.6 * count < rows["_corrupt"].null_count < 0.8 * count


def test_checksums_of_records_find_each_wrong_one() -> None:
    draw = random.Random(1)
    builder = SegmentBuilder()
    for size in (0, 1, 200, 16_000, 70_000, *range(150), 3):
        builder.entry(b"%d" % len(builder.offsets), value=draw.randbytes(size))
    data = bytes(builder)
    frames = find_frames(SegmentBytes(data))
    assert frames is not None
    start, _, end = frames
    assert start.tolist() == builder.offsets
    assert right_checksums(data, SegmentBytes(data), start, end).all()
    for first, behind in zip(start.tolist(), end.tolist(), strict=True):
        harmed = bytearray(data)
        harmed[draw.randrange(first, behind + CRC_BYTES)] ^= 1 << draw.randrange(8)
        right = right_checksums(bytes(harmed), SegmentBytes(bytes(harmed)), start, end)
        assert start[~right].tolist() == [first]


def test_reader_scans_no_segment_whose_checksums_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / segment_name(1)
    path.write_bytes(bytes(sample()))
    segment = SegmentFile(str(path), 1, path.stat().st_size, last=True, open=False)
    oracle = expected(segment, pa.fs.LocalFileSystem())
    monkeypatch.setattr(vectorised_reader, "scan_segment", None)
    assert found(segment, pa.fs.LocalFileSystem()) == oracle


@pytest.mark.usefixtures("decoded_once")
def test_reader_equals_the_oracle_where_a_record_has_other_contents(tmp_path: Path) -> None:
    for seed in range(40):
        draw = random.Random(seed)
        builder = sample()
        data = bytearray(bytes(builder))
        starts = [*builder.offsets, len(data)]
        index = draw.randrange(len(starts) - 1)
        start, end = starts[index], starts[index + 1] - CRC_BYTES
        for _ in range(draw.choice((1, 1, 2))):
            at = draw.randrange(start, end)
            data[at] = draw.choice((data[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
        data[end : end + CRC_BYTES] = google_crc32c.value(bytes(data[start:end])).to_bytes(4)
        check_bytes(tmp_path, bytes(data))


@pytest.mark.parametrize("number", [-(2**63), -1, 2**31, 2**63, 2**64 - 1])
def test_reader_equals_the_oracle_where_numbers_of_groups_are_absurd(
    tmp_path: Path, number: int
) -> None:
    for head in (
        Lease.bare(number, 7),
        Lease.bare(1, number),
        Batch(number),
    ):
        builder = SegmentBuilder(previous=None)
        job = builder.entry(b"w:1:5:x")
        builder.operation(head)
        builder.simple(Command.START_ATTEMPT, job)
        builder.lease([job], 77)
        check_bytes(tmp_path, bytes(builder))


@pytest.mark.parametrize("seconds", [-(2**63), -(2**63) + UNIX_SECONDS, -1, 2**63 - 1])
def test_reader_equals_the_oracle_at_instants_that_fit_into_no_column(
    tmp_path: Path, seconds: int
) -> None:
    data = bytearray(bytes(sample()))
    start, behind = sample().offsets[1:3]
    end = behind - CRC_BYTES
    data[start + 1 : start + 9] = seconds.to_bytes(8, signed=True)
    data[end:behind] = google_crc32c.value(bytes(data[start:end])).to_bytes(4)
    check_bytes(tmp_path, bytes(data))


KEYS = (
    b"d:0:0:i", b"d:255:18446744073709551615:", b"d:256:0:i", b"d:1:18446744073709551616:i",
    b"d:1:000000000000000000001:i", b":1:1:i", b"d:1::i", b"d::1:i", b"d:0001:1:i", b"d:1:1", b"",
    b"d:1:1:a:b:c", b"d:a:1:i", b"d:1:1x:i", b"\xc3\xbc:1:1:\xff", b"d:\xb2:1:i", b"d: 1:1:i",
    b"d:1:00000000000000000001:i", b"x" * 300, b"d:1:1:" + b"y" * 70_000,
)  # fmt: skip


def test_reader_finds_the_parts_of_keys_of_any_form(tmp_path: Path) -> None:
    builder = SegmentBuilder()
    for index, key in enumerate(KEYS):
        job = builder.entry(key, uri=b"u" * index * 40, arrival=2**62, expires=2**64 - 1)
        builder.complete(job, key, 2**64 - 1)
    builder.entry(b"links", links=[b"one"], reason=b"", attempts=2**31)
    builder.entry(b"buried", reason=b"\xff", superseded=2**63, ttl=1, error=b"e", erases=True)
    check_bytes(tmp_path, bytes(builder))


def test_reader_gives_each_column_alone_as_with_all(tmp_path: Path) -> None:
    every_kind(tmp_path, 5)
    log = LogDirectory(tmp_path)
    segment = log.segments[0]
    rows = expected(segment, log.files)
    for name in NAMES:
        assert found(segment, log.files, names=[name]) == rows.select([name])


@pytest.mark.usefixtures("decoded_once")
def test_reader_leaves_out_an_unfinished_group_at_the_end_of_the_log(tmp_path: Path) -> None:
    for following in range(4):
        builder = SegmentBuilder()
        jobs = [builder.entry(b"%d" % index) for index in range(3)]
        builder.operation(Batch(4))
        builder.operation(Lease.bare(3, 77))
        for job in jobs[:following]:
            builder.simple(Command.START_ATTEMPT, job)
        check_bytes(tmp_path, bytes(builder))
        (tmp_path / segment_name(2)).write_bytes(bytes(SegmentBuilder(1)))
        check(tmp_path)
        (tmp_path / segment_name(2)).unlink()


def test_reader_keeps_no_more_than_a_chunk_of_records_decoded_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "CHUNK_RECORDS", 20)
    builder = SegmentBuilder(previous=None)
    for _ in range(400):
        builder.foreign(b"q", bytes(5000))
    (tmp_path / segment_name(1)).write_bytes(bytes(builder))
    log = LogDirectory(tmp_path)
    size = len(builder.data)
    del builder
    tracemalloc.start()
    try:
        batches = read_batches(log.files, log.segments[0], ["key"], permissive=False)
        rows = sum(len(batch) for batch in batches)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == 400
    assert peak < 1.5 * size, "the file is one time its size"


@pytest.mark.usefixtures("decoded_once")
def test_reader_slices_keep_a_lease_and_its_start_attempts_together(tmp_path: Path) -> None:
    builder = SegmentBuilder()
    jobs = [builder.entry(b"%d" % index) for index in range(9)]
    before = len(builder.data)
    builder.lease(jobs, 77)
    behind = len(builder.data)
    builder.entry(b"last")
    check_bytes(tmp_path, bytes(builder))
    log = LogDirectory(tmp_path)
    starts = set()
    for slices in range(2, 40):
        tables = [
            found(
                log.segments[0],
                log.files,
                names=["offset", "token"],
                part=SegmentSlice(one, slices),
            )
            for one in range(slices)
        ]
        starts |= {table["offset"][0].as_py() for table in tables if len(table)}
        tokens = [token for table in tables for token in table["token"].to_pylist()]
        assert tokens.count(77) == 10
    assert not [start for start in starts if before < start < behind]
    assert len(starts) > 5


@pytest.mark.usefixtures("decoded_once")
def test_reader_slices_of_an_open_segment_agree_when_its_torn_tail_is_cut(tmp_path: Path) -> None:
    builder = SegmentBuilder()
    for index in range(60):
        builder.entry(b"%d" % index)
    whole = len(builder.data)
    builder.entry(b"torn", value=bytes(3000))
    path = tmp_path / segment_name(1)
    torn = bytes(builder)[:-1]
    path.write_bytes(torn)
    log = LogDirectory(tmp_path)
    segment = log.segments[0]
    assert segment.open
    rows = found(segment, log.files, names=["offset"])["offset"].to_pylist()
    assert len(rows) == 61
    assert rows[-1] < whole
    for slices in range(2, 12):
        for cut_before in range(1, slices):
            path.write_bytes(torn)
            offsets = []
            for number in range(slices):
                if number == cut_before:
                    # a daemon that starts cuts the tail
                    path.write_bytes(torn[:whole])
                part = SegmentSlice(number, slices)
                table = found(segment, log.files, names=["offset"], part=part)
                offsets += table["offset"].to_pylist()
            assert offsets == rows, (slices, cut_before)


def test_reader_slices_take_no_record_inside_a_value_for_one_of_the_log(tmp_path: Path) -> None:
    inner = SegmentBuilder(previous=None)
    for index in range(30):
        inner.entry(b"inner%d" % index)
    builder = SegmentBuilder()
    builder.entry(b"before")
    builder.entry(b"large", value=bytes(inner)[8:])
    builder.entry(b"after")
    check_bytes(tmp_path, bytes(builder))


def test_slices_of_a_segment_have_about_the_size_asked_for() -> None:
    mib = 1024 * 1024
    sizes = {size: len(slices_of(size * mib, 64 * mib)) for size in (0, 1, 64, 80, 97, 200, 9000)}
    assert sizes == {0: 1, 1: 1, 64: 1, 80: 1, 97: 2, 200: 3, 9000: SLICES_MAX}
    assert slices_of(130, 64) == [SegmentSlice(0, 2), SegmentSlice(1, 2)]


@pytest.mark.parametrize("behind", [0, 1])
def test_segment_with_a_value_beyond_arrow_has_all_columns_but_that_of_values(
    behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = SegmentBuilder()
    # of a real value it would be 2 GiB; the last record of a segment goes another way
    for number, size in enumerate((3, 5000, 7)[: 2 + behind]):
        builder.entry(b"a:128:5:%d" % number, value=bytes(size), uri=b"u%d" % number)
    data = bytes(builder)
    segment = SegmentFile("1", 1, len(data), False, False, google_crc32c.value(data))
    names = [name for name in NAMES if name not in ("value", "payload")]
    plain = list(read_data(data, segment, names, permissive=False))
    monkeypatch.setattr(byte_arrays, "OFFSET_MAX", 4000)
    assert list(read_data(data, segment, names, permissive=False)) == plain
    if behind:
        with pytest.raises(BadRequestError, match="leave the column with the value out"):
            list(read_data(data, segment, ["value"], permissive=False))


def test_byte_strings_far_from_each_other_are_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SegmentBytes(bytes(range(256)) * 4)
    starts, ends = np.array([5, 200, 900]), np.array([8, 200, 910])
    missing = np.array([False, False, True])
    near = [data.binary(starts, ends), data.binary(starts, ends, missing)]
    monkeypatch.setattr(byte_arrays, "OFFSET_MAX", 20)
    assert [data.binary(starts, ends), data.binary(starts, ends, missing)] == near
    assert near[1].to_pylist() == [bytes([5, 6, 7]), b"", None]
