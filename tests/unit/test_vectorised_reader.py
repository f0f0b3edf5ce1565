"""Vectorised reader of records: each value is that of the record by record reader."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pytest

from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    SEGMENT_HEADER,
    TIME_BYTES,
    UNIX_SECONDS,
    Command,
    segment_name,
)
from fastjournal.cmdlog.format.operation_records import Batch, Extend, Lease
from fastjournal.cmdlog.format.records import body_offset
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.decoding import byte_arrays
from fastjournal.spark.decoding import rows as decoder
from fastjournal.spark.decoding.byte_arrays import SegmentBytes
from fastjournal.spark.decoding.rows import RecordRow
from fastjournal.spark.decoding.vectorised import chunk
from fastjournal.spark.decoding.vectorised.frames import SegmentSlice
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
    DATA / "0.1.0/log",
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
    for head in (Lease.bare(number, 7), Lease.bare(1, number), Batch(number)):
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
