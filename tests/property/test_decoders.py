"""Decoders of single records, of blocks for replay and of arrays read the same from any segment.

Corpora: the golden log, logs of workq itself, random logs, and records that Hypothesis makes: of
any fields, forms and lengths, whole, cut and damaged, with and without right checksums.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.cmdlog.format.endings import SERIAL_MAX
from fastjournal.cmdlog.format.envelope import MAGIC_BYTES, Completion, Envelope, Failure, pack
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    JOB_TAIL_BYTES,
    NO_TIME,
    SEGMENT_HEADER,
    Command,
    pack_position,
    segment_name,
)
from fastjournal.cmdlog.format.operation_records import (
    OPERATION_NAME,
    Operation,
    SegmentStart,
    encode_operation,
    unpack_content,
)
from fastjournal.cmdlog.format.records import (
    Record,
    decode_body,
    encode_record,
    encode_time,
    entry_key,
    is_operation,
    job_id_at,
    payload_offset,
    result_at,
)
from fastjournal.cmdlog.recovery import entry_blocks
from fastjournal.cmdlog.recovery.replay import BlockReplay, Replay
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry, replayed_entry
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.errors import LogCorruptError
from fastjournal.limits import VALUE_BYTES_LIMIT
from fastjournal.spark.decoding.view_columns import READABLE, to_batch
from fastjournal.spark.storage.files import SegmentFile
from fastjournal.testing.logs import START_US
from tests.spark.plain_reader import read_data, segment_rows
from tests.spark.random_logs import every_record, write_random_log

NUMBER = 1
NAMES = list(READABLE)
DATA = Path(__file__).parent.parent / "format" / "data"
RECORDED = sorted(
    path
    for directory in (DATA / "fastjournald", *(DATA / "workq").iterdir())
    for path in directory.glob("*.log")
)
"""The golden log, and logs of workq itself."""


# --- the three, and what they have to agree about ---------------------------------------------


def check(data: bytes) -> None:
    """Compare what the three decoders read from the bytes of a segment."""
    entries = dict(check_single(data))
    check_blocks(data, entries)
    check_arrays(data)
    check_replay(data)


def check_single(data: bytes) -> Iterator[tuple[int, tuple[ReplayedEntry, bool]]]:
    """Compare records that are decoded with the same read in place.

    Yields the offsets of entries, each with the entry, and whether it may be in no block.
    """
    for start, body, end in scan_segment(data).spans():
        assert job_id_at(data, body) == data[body + 1 : body + 17]
        try:
            record = decode_body(data, start, body, end - CRC_BYTES)
        except LogCorruptError:
            continue
        assert record.job_id == job_id_at(data, body)
        if record.command <= Command.SCHEDULE:
            at = payload_offset(data, body)
            assert not at or data[at : end - JOB_TAIL_BYTES] == record.payload
            assert is_operation(data, body) == (record.name == OPERATION_NAME)
        elif record.command <= Command.FAIL:
            assert result_at(data, body, end) == record.result
        try:
            content = unpack_content(record)
        except LogCorruptError:
            continue
        if isinstance(content, Envelope):
            try:
                assert entry_key(data, start, body, end - CRC_BYTES) == content.key
            except LogCorruptError:
                # msgpack has longer forms of lengths, which nothing of ours writes
                array = msgspec.msgpack.decode(record.payload[MAGIC_BYTES:])
                assert pack(array) != record.payload
            position = pack_position(NUMBER, start)
            job = replayed_entry(content, record.job_id, position, end - start)
            special = content.links or content.superseded or content.taken or len(record.name) > 127
            yield start, (job, bool(special))
        elif content is None and record.command <= Command.SCHEDULE:
            assert entry_key(data, start, body, end - CRC_BYTES) is None


def check_blocks(data: bytes, entries: dict[int, tuple[ReplayedEntry, bool]]) -> None:
    """Compare the entries of all blocks with those decoded one by one; only special ones lack."""
    left = dict(entries)
    for run in scan_segment(data).runs:
        for block in entry_blocks.entry_blocks(data, NUMBER, run):
            offsets = [run.offset(block.first + index) for index in range(len(block.jobs))]
            assert block.jobs == [left.pop(offset)[0] for offset in offsets]
            assert block.arrival == max(0, *(job.arrival for job in block.jobs))
    assert all(special for _, special in left.values())


def check_arrays(data: bytes) -> None:
    """Compare all columns of arrays with those of rows, in the rows' order; or the errors."""
    segment = SegmentFile(segment_name(NUMBER), NUMBER, len(data), last=True, open=False)
    for permissive in (True, False):
        found: list[Any] = []
        for read in (read_arrays, read_rows):
            try:
                found.append(read(data, segment, permissive=permissive))
            except LogCorruptError as error:
                found.append(str(error))
        assert found[0] == found[1]


def read_arrays(data: bytes, segment: SegmentFile, *, permissive: bool) -> list[dict[str, Any]]:
    batches = read_data(data, segment, NAMES, permissive=permissive)
    return [row for batch in batches for row in batch.to_pylist()]


def read_rows(data: bytes, segment: SegmentFile, *, permissive: bool) -> list[dict[str, Any]]:
    rows = list(segment_rows(data, segment, permissive))
    return to_batch(rows, [READABLE[name] for name in NAMES]).to_pylist()


def check_replay(data: bytes) -> None:
    """Compare what replay in blocks leaves with replay of one record at a time."""
    states = []
    for in_blocks in (True, False):
        replay = Replay()
        replay.start_segment(NUMBER, data)
        scan = scan_segment(data)
        for run in scan.runs:
            last = run is scan.runs[-1]
            if in_blocks:
                blocks = BlockReplay(replay, run, entry_blocks.entry_blocks(data, NUMBER, run))
                blocks.replay(0, len(run), last=last)
            else:
                replay.replay(run, last=last)
        state = replay.state
        states.append(
            (
                *(state.jobs, state.keys.keys(), state.tombstones, state.arrival),
                *(state.last_token, state.records, replay.damage, replay.cut),
            )
        )
    assert states[0] == states[1]


# --- corpora ------------------------------------------------------------------------------------


def test_decoders_agree_on_recorded_logs() -> None:
    assert len(RECORDED) > 10
    for path in RECORDED:
        check(path.read_bytes())


@pytest.mark.parametrize("seed", range(4))
def test_decoders_agree_on_random_logs(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_blocks, "BLOCK_RECORDS_MIN", 1)
    monkeypatch.setattr(entry_blocks, "BLOCK_RECORDS_MAX", 7)
    write_random_log(tmp_path, seed, segments=2, records=80)
    for path in sorted(tmp_path.iterdir()):
        check(path.read_bytes())


@pytest.mark.parametrize("step", [1, 7])
def test_decoders_agree_on_a_log_of_all_records_with_each_byte_damaged_or_cut(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 1 goes over each of some bytes, one of 7 over the whole log."""
    monkeypatch.setattr(entry_blocks, "BLOCK_RECORDS_MIN", 1)
    data = bytes(every_record())
    places = range(200, 300) if step == 1 else range(0, len(data), step * 5)
    for at in places:
        check(data[:at])
        check(data[:at] + bytes((data[at] ^ 0x41,)) + data[at + 1 :])


# --- records of any form ------------------------------------------------------------------------

u63 = st.integers(0, 2**63 - 1) | st.sampled_from([0, 1, START_US, 2**63, 2**64 - 1])
small = st.binary(max_size=20)
keys = st.sampled_from([b"a:1:0:x", b"a:128:%d:y" % START_US, b"plain", b"", b":", b"d:256:1:z"])
keys |= st.binary(max_size=300)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "key": keys,
    "uri": st.none() | small,
    "links": st.lists(keys, max_size=3) | st.just([]),
    "taken": st.lists(st.integers(0, 4), max_size=2).map(tuple) | st.just(()),
    "value": small | st.binary(min_size=200, max_size=400),
    "error": st.none() | small,
    "erases": st.booleans(),
    "arrival": st.integers(0, SERIAL_MAX),
    "last_serial": st.integers(0, SERIAL_MAX),
    "job_id": st.binary(min_size=16, max_size=16),
    "following": st.integers(0, 3) | st.integers(0, 2**31 - 1),
    "priority": st.integers(0, 255),
    "value_type": st.integers(0, 255),
    "origin": st.integers(0, 255),
    "size": st.integers(0, VALUE_BYTES_LIMIT),
    "domains": st.just([]) | st.tuples(small, st.integers(0, 9)).map(list),
}
BYTES = {"facts", "priorities", "numbers", "domain", "old", "reason"}
FLAGS = {"done", "again", "is_instant"}


def field(struct: type[msgspec.Struct], name: str) -> st.SearchStrategy[Any]:
    hint = str(struct.__annotations__[name])
    if name in FIELDS:
        found = FIELDS[name]
    elif name in FLAGS:
        found = st.booleans()
    elif name in BYTES:
        found = small
    else:
        found = u63
    return st.none() | found if "None" in hint else found


def structs(struct: type[msgspec.Struct]) -> st.SearchStrategy[list[Any]]:
    """Return arrays of the fields of a struct: all, only the needed ones, more or fewer."""
    needed = len(struct.__struct_fields__) - len(struct.__struct_defaults__)
    full = st.tuples(*(field(struct, name) for name in struct.__struct_fields__)).map(list)
    tag = struct.__struct_config__.tag
    head = [] if tag is None else [tag]

    def sized(drawn: tuple[list[Any], int, list[Any]]) -> list[Any]:
        fields, count, more = drawn
        if count > len(fields):
            return [*head, *fields, *more]
        return [*head, *fields[: max(count, needed - 1)]]

    counts = st.sampled_from([needed - 1, needed, *[len(struct.__struct_fields__)] * 6, 99])
    return st.tuples(full, counts, st.lists(small | u63, max_size=2)).map(sized)


def packed(struct: type[msgspec.Struct]) -> st.SearchStrategy[bytes]:
    return structs(struct).map(lambda fields: pack(tuple(fields)))


times = st.sampled_from([START_US, START_US + 1, 0, 2**62]).map(encode_time) | st.just(NO_TIME)
ids = st.binary(min_size=8, max_size=8).map(lambda tail: b"runrunru" + tail)
ids |= st.sampled_from([b"runrunru" + bytes(7) + bytes((n,)) for n in range(4)])
payloads = packed(Envelope) | packed(Envelope) | small | small.map(lambda tail: b"FJ\x01" + tail)
jobs = st.builds(
    Record,
    command=st.sampled_from([Command.ADD, Command.SCHEDULE]),
    job_id=ids,
    time=times,
    name=st.sampled_from(["a", "a", "fj.kv", "fj.op", "n" * 127, "n" * 128]),
    ttr_ms=st.sampled_from([1, 60_000, 2**40]),
    ttl_ms=st.sampled_from([1, 2_592_000_000]),
    priority=st.integers(-300, 300),
    max_attempts=st.sampled_from([0, 255]),
    max_fails=st.sampled_from([0, 255]),
    payload=payloads,
    not_before=times,
    created=times,
)
operations = st.builds(
    Record,
    command=st.sampled_from([Command.ADD] * 9 + [Command.SCHEDULE]),
    job_id=ids,
    time=times,
    name=st.just(OPERATION_NAME),
    ttr_ms=st.just(1),
    ttl_ms=st.just(1),
    payload=st.one_of(*map(packed, get_args(Operation))),
    not_before=st.just(NO_TIME),
    created=times,
)
results = st.builds(
    Record,
    command=st.just(Command.COMPLETE),
    job_id=ids,
    time=times,
    result=packed(Completion) | packed(Failure) | small,
) | st.builds(
    Record,
    command=st.just(Command.FAIL),
    job_id=ids,
    time=times,
    result=packed(Failure) | packed(Completion) | small,
)
simples = st.builds(
    Record,
    command=st.sampled_from([Command.DELETE, Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT]),
    job_id=ids,
    time=times,
)
records = st.one_of(jobs, jobs, operations, results, simples).map(encode_record)
starts = st.just(
    [encode_operation(SegmentStart(0, 0, 0, 0, 0), encode_time(START_US), b"runrunru" + bytes(8))]
)


def with_right_checksum(data: bytes, at: int, byte: int) -> bytes:
    """Return a record with another byte, before its checksum, which is right."""
    at %= len(data) - CRC_BYTES
    body = data[:at] + bytes((byte,)) + data[at + 1 : -CRC_BYTES]
    return body + google_crc32c.value(body).to_bytes(CRC_BYTES, "big")


odd = st.builds(with_right_checksum, records, st.integers(0, 1 << 16), st.integers(0, 255))
segments = st.builds(
    lambda first, rest: SEGMENT_HEADER + b"".join((*first, *rest)),
    st.just([]) | starts,
    st.lists(st.one_of(records, records, records, odd), max_size=12),
)


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_blocks, "BLOCK_RECORDS_MIN", 1)
        patch.setattr(entry_blocks, "BLOCK_RECORDS_MAX", 4)
        yield


@given(segments)
@settings(max_examples=100)
def test_decoders_agree_on_records_of_any_form(data: bytes) -> None:
    check(data)


@given(segments, st.integers(0, 1 << 16), st.integers(1, 255), st.booleans())
@settings(max_examples=100)
def test_decoders_agree_on_cut_and_damaged_segments(
    data: bytes, at: int, bits: int, is_cut: bool
) -> None:
    at %= len(data)
    check(data[:at] if is_cut else data[:at] + bytes((data[at] ^ bits,)) + data[at + 1 :])
