from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import google_crc32c
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.cmdlog.format.endings import end_of_lease, is_stale, superseded_by
from fastjournal.cmdlog.format.envelope import (
    Completion,
    Envelope,
    Failure,
    encode_fields,
    pack,
    unpack_completion,
)
from fastjournal.cmdlog.format.layout import (
    NO_TIME,
    SEGMENT_HEADER,
    Command,
    decode_uvarint,
    encode_uvarint,
    encode_varint,
)
from fastjournal.cmdlog.format.operation_records import (
    OPERATION_NAME,
    Change,
    Lease,
    Operation,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import (
    Record,
    decode_record,
    decode_time,
    encode_head,
    encode_job,
    encode_record,
    encode_result,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.errors import LogCorruptError
from fastjournal.protocol.constants import Flag, Function
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.subject import SECOND

NUMBER_FORMS: dict[Any, Any] = {
    bytes: bytes(16),
    bytes | None: None,
    list[bytes]: [],
    tuple[int, ...]: (),
    bool: False,
    list[bytes | int]: [],
}
"""A value of each type of a field; all others are numbers."""
CORPUS = Path(__file__).parents[1] / "format" / "data" / "workq"
JOB_ID = bytes.fromhex("2ca5e3335ac34558b16b9e3f4a749e21")
NOW = encode_time(1_795_165_389_751_578)

times = st.integers(-(2**62), 2**64 - 1).map(encode_time) | st.just(NO_TIME)
u64 = st.integers(0, 2**64 - 1)
job_ids = st.binary(min_size=16, max_size=16)
jobs = st.builds(
    Record,
    command=st.sampled_from([Command.ADD, Command.SCHEDULE]),
    job_id=job_ids,
    time=times,
    name=st.text(st.characters(max_codepoint=255), max_size=200),
    ttr_ms=u64,
    ttl_ms=u64,
    priority=st.integers(-(2**31), 2**31 - 1),
    max_attempts=st.integers(0, 255),
    max_fails=st.integers(0, 255),
    payload=st.binary(max_size=5000),
    not_before=times,
    created=times,
)
results = st.builds(
    Record,
    command=st.sampled_from([Command.COMPLETE, Command.FAIL]),
    job_id=job_ids,
    time=times,
    result=st.binary(max_size=300),
)
simple = st.builds(
    Record,
    command=st.sampled_from([command for command in Command if command >= Command.DELETE]),
    job_id=job_ids,
    time=times,
)
records = jobs | results | simple


def with_crc(data: bytes) -> bytes:
    crc: int = google_crc32c.value(data)
    return data + crc.to_bytes(4, "big")


def with_payload(payload: bytes) -> bytes:
    return with_crc(NOW + encode_uvarint(len(payload)) + payload)


def test_example_of_the_format_is_reproduced_byte_for_byte() -> None:
    example = bytes.fromhex(
        "010000000ee291f83f1fe1d344ffff 1d 03 2ca5e3335ac34558b16b9e3f4a749e21"
        "0b 726573756c742074657874 a07af575"
    )
    time = example[:15]
    assert encode_result(Command.COMPLETE, time, JOB_ID, b"result text") == example
    record, end = decode_record(example)
    assert end == len(example)
    assert record == Record(Command.COMPLETE, JOB_ID, time, result=b"result text")
    # 2026-11-20T08:13:51.534893380Z
    assert record.time_us == 1_795_162_431_534_893


def test_bytes_of_an_add_are_those_of_the_table() -> None:
    created = encode_time(1_000_000)
    head = encode_head(b"pages", 60_000, 300, -3, 5, 0)
    assert head == b"\x05pages" + b"\xe0\xd4\x03" + b"\xac\x02" + b"\x05" + b"\x05" + b"\x00"
    payload = b"\x01" + JOB_ID + head + b"\x03abc" + NO_TIME + created
    assert encode_job(Command.ADD, NOW, JOB_ID, head, b"abc", NO_TIME, created) == with_payload(
        payload
    )


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*.log")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_record_of_a_real_log_encodes_to_the_same_bytes(path: Path) -> None:
    data = path.read_bytes()
    assert data.startswith(SEGMENT_HEADER)
    offset = len(SEGMENT_HEADER)
    while offset < len(data):
        record, end = decode_record(data, offset)
        assert encode_record(record) == data[offset:end]
        offset = end
    assert offset == len(data)


@given(records, st.binary(max_size=40), st.binary(max_size=40))
def test_record_survives_encoding_wherever_it_stands(
    record: Record, before: bytes, behind: bytes
) -> None:
    data = encode_record(record)
    assert decode_record(before + data + behind, len(before)) == (record, len(before) + len(data))


@given(records, st.data())
def test_record_cut_anywhere_is_refused(record: Record, choice: st.DataObject) -> None:
    data = encode_record(record)
    cut = choice.draw(st.integers(0, len(data) - 1))
    with pytest.raises(LogCorruptError):
        decode_record(data[:cut])


@given(records, st.data())
def test_flipped_bit_anywhere_is_refused(record: Record, choice: st.DataObject) -> None:
    data = bytearray(encode_record(record))
    bit = choice.draw(st.integers(0, len(data) * 8 - 1))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(LogCorruptError):
        decode_record(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        encode_simple(Command.DELETE, NOW, JOB_ID),
        encode_result(Command.FAIL, NOW, JOB_ID, b"why"),
        encode_job(Command.ADD, NOW, JOB_ID, encode_head(b"q", 1, 1, 0, 0, 0), b"p", NOW, NOW),
    ],
)
def test_bytes_after_the_last_field_and_cut_fields_are_refused(data: bytes) -> None:
    payload = data[16:-4]
    with pytest.raises(LogCorruptError, match="1 bytes follow the last field"):
        decode_record(with_payload(payload + b"\x00"))
    for length in range(len(payload)):
        with pytest.raises(LogCorruptError):
            decode_record(with_payload(payload[:length]))


@pytest.mark.parametrize("command", [0, 9, 255])
def test_unknown_command_is_refused_with_its_offset(command: int) -> None:
    data = with_payload(bytes((command,)) + JOB_ID)
    with pytest.raises(LogCorruptError, match=f"command {command} is unknown") as caught:
        decode_record(data)
    assert caught.value.offset == 16


def test_claimed_size_is_held_against_the_data_before_anything_is_read() -> None:
    data = NOW + encode_uvarint(2**62) + b"\x05" + JOB_ID + bytes(40)
    with pytest.raises(LogCorruptError, match="is cut"):
        decode_record(data)


@given(u64)
def test_uvarint_survives_encoding(number: int) -> None:
    data = encode_uvarint(number)
    assert decode_uvarint(b"\xff" + data + b"\x01", 1, len(data) + 1) == (number, len(data) + 1)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\x80" * 11])
def test_uvarint_that_is_cut_or_over_64_bits_is_refused(data: bytes) -> None:
    with pytest.raises(LogCorruptError):
        decode_uvarint(data, 0, len(data))


@pytest.mark.parametrize(
    ("number", "data"), [(0, b"\0"), (-1, b"\1"), (1, b"\2"), (-64, b"\x7f"), (128, b"\x80\x02")]
)
def test_priority_is_a_zig_zag_varint(number: int, data: bytes) -> None:
    assert encode_varint(number) == data


@given(st.integers(-(2**62), 2**64 - 1))
def test_instant_survives_encoding(us: int) -> None:
    assert decode_time(encode_time(us)) == us


def test_times_of_any_zone_are_read_and_no_time_is_none() -> None:
    utc_as_zero = NOW[:13] + b"\x00\x00"
    assert decode_time(utc_as_zero) == decode_time(NOW) == 1_795_165_389_751_578
    assert decode_time(NO_TIME) is None
    assert decode_time(NO_TIME[:13] + b"\0\0") is None


@pytest.mark.parametrize("data", [b"", NOW[:14], NOW + b"\0", b"\x02" + NOW[1:], bytes(15)])
def test_record_without_a_time_is_refused(data: bytes) -> None:
    with pytest.raises(LogCorruptError):
        decode_time(data)


NUMBERS = [
    (struct, field)
    for struct in (*get_args(Operation), Envelope, Completion)
    for field in struct.__struct_fields__
    if get_type_hints(struct)[field] is int
]


@pytest.mark.parametrize(
    ("struct", "field"), NUMBERS, ids=lambda each: getattr(each, "__name__", each)
)
def test_number_below_zero_in_a_record_of_ours_is_damage(
    struct: type[msgspec.Struct], field: str
) -> None:
    fields: dict[str, Any] = {
        name: NUMBER_FORMS.get(get_type_hints(struct)[name], 0) for name in struct.__struct_fields__
    }
    decode = msgspec.msgpack.Decoder(struct).decode
    assert decode(msgspec.msgpack.encode(struct(**fields)))
    with pytest.raises(msgspec.ValidationError, match=">= 0"):
        decode(msgspec.msgpack.encode(struct(**fields | {field: -1})))


@pytest.mark.parametrize(
    "struct",
    [*get_args(Operation), Envelope, Completion, Failure],
    ids=lambda struct: struct.__name__,
)
def test_struct_of_ours_is_read_in_its_form_and_with_more_fields_only(
    struct: type[msgspec.Struct],
) -> None:
    """A field without a default is always there; what a later version adds is skipped."""
    hints = get_type_hints(struct)
    made = struct(**{name: NUMBER_FORMS.get(hints[name], 0) for name in struct.__struct_fields__})
    decode = msgspec.msgpack.Decoder(struct).decode
    array = msgspec.msgpack.decode(msgspec.msgpack.encode(made))
    assert decode(msgspec.msgpack.encode([*array, b"new", 7])) == made
    needed = len(array) - len(struct.__struct_defaults__)
    assert decode(msgspec.msgpack.encode(array[:needed])) == made
    with pytest.raises(msgspec.ValidationError, match="length"):
        decode(msgspec.msgpack.encode(array[: needed - 1]))


@pytest.mark.parametrize("change", get_args(Change), ids=lambda change: change.__name__)
@pytest.mark.parametrize("size", [0, 15, 17])
def test_change_of_a_job_whose_id_has_another_length_is_damage(
    change: type[msgspec.Struct], size: int
) -> None:
    hints = get_type_hints(change)
    rest = {name: NUMBER_FORMS.get(hints[name], 0) for name in change.__struct_fields__}
    decode = msgspec.msgpack.Decoder(change).decode
    assert decode(msgspec.msgpack.encode(change(**rest | {"job_id": bytes(16)})))
    with pytest.raises(msgspec.ValidationError, match="length"):
        decode(msgspec.msgpack.encode(change(**rest | {"job_id": bytes(size)})))


# --- rules that the daemon and replay share, and what facts cost ----------------------------------


@pytest.mark.parametrize(
    ("standing", "holder", "deleted", "stale"),
    [
        (None, None, None, False),
        (4, 4, 4, False),
        (5, None, None, False),
        (None, 5, None, False),
        (None, None, 5, True),
        (6, None, None, True),
        (None, 6, None, True),
        (None, None, 6, True),
        (4, 6, 4, True),
        (6, 4, 4, True),
    ],
)
def test_records_of_a_newer_timestamp_win_and_of_equal_ones_the_later_record(
    standing: int | None, holder: int | None, deleted: int | None, stale: bool
) -> None:
    assert is_stale(5, standing, holder, deleted) == stale


def test_records_of_a_lease_say_by_their_time_whether_it_was_lost() -> None:
    for time, lost in ((99, False), (100, True), (101, True)):
        end = end_of_lease(100, time, 2, 7)
        assert (end.lost, end.attempts, end.first_due) == (lost, 2 + lost, min(time, 100))
    # there was none
    assert end_of_lease(0, 100, 2, 7) == (False, 2, 7)
    assert end_of_lease(100, 150, 0, 120).first_due == 120
    assert [superseded_by(0, 0), superseded_by(0, 9), superseded_by(3, 9)] == [1, 9, 3]


def test_record_of_an_end_has_at_most_24_bytes_of_facts_beside_the_place() -> None:
    log = CompactedLog(cmdlog_seg_size=1 << 20)
    for number in range(12):
        log.done(Function.SET, b"jobs:200:0:%d" % number, b"v", uri=b"u%d" % number)
    log.pass_time(1)
    for flags in (Flag.WORKED_ON, Flag.WORKED_ON | Flag.OVERWRITE):
        reply = log.ask(Function.NEXT, b"jobs", timeout=50 * SECOND)
        assert reply.pairs is not None
        log.done(Function.DELETE, reply.pairs[0].key, flags=flags, timeout=reply.timeout)
    log.ask(Function.NEXT, b"jobs", flags=Flag.OVERWRITE)
    log.done(Function.DELETE, b"jobs:200:0:3")
    log.done(Function.DELETE, b"jobs:200:0:4", flags=Flag.OVERWRITE)
    log.done(Function.SET, b"jobs:200:0:5", b"w", flags=Flag.OVERWRITE)
    log.done(Function.SET, b"jobs:200:0:x", b"w", uri=b"u6")
    log.pass_time(60)
    data = records_of(log)
    ends = [r.result for r in data if r.command == Command.COMPLETE]
    assert len(ends) == 7
    for result in ends:
        done = unpack_completion(result)
        # without a tombstone, domain and priority stand there only for the event
        priority = encode_fields(done.priority) if done.timestamp is None else b""
        bare = pack((done.timestamp, done.key))
        assert len(result) - len(priority) <= len(bare) + 24


def test_record_of_a_lease_has_at_most_16_bytes_for_each_entry_beside_the_domain() -> None:
    sizes = []
    for count in (1, 2, 50):
        log = CompactedLog(cmdlog_seg_size=1 << 20)
        for number in range(count):
            log.done(Function.SET, b"jobs:200:0:%d" % number, b"v")
        for _ in range(2):
            # the second time, their attempts are no first ones
            log.ask(Function.NEXT, b"jobs", timeout=SECOND, count=count)
            log.pass_time(2)
        found = [unpack_operation(r.payload) for r in records_of(log) if r.name == OPERATION_NAME]
        leases = [each for each in found if isinstance(each, Lease)]
        assert [lease.following for lease in leases] == [count, count]
        for lease in leases:
            bare = Lease(lease.following, lease.token, False, 0, b"", b"", b"", lease.domains, 0)
            sizes.append((count, len(encode_fields(lease)) - len(encode_fields(bare))))
    base = 4
    assert all(size <= base + 16 * count for count, size in sizes), sizes


def records_of(log: CompactedLog) -> list[Record]:
    """Return the records of a log."""
    log.flush()
    return [
        decode_record(data, start)[0]
        for data in (log.disk.read(f"{LOG}/{name}") for name in log.segments())
        for start, _, _ in scan_segment(data).spans()
    ]
