"""Records of the log: bytes that are cut, flipped or foreign, and what workq takes."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import google_crc32c
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.cmdlog.format.envelope import Completion, Envelope, Failure
from fastjournal.cmdlog.format.layout import NO_TIME, Command, decode_uvarint, encode_uvarint
from fastjournal.cmdlog.format.layout import SEGMENT_HEADER as HEADER
from fastjournal.cmdlog.format.operation_records import Change, Limit, Operation
from fastjournal.cmdlog.format.records import (
    Record,
    decode_record,
    encode_head,
    encode_job,
    encode_record,
    encode_result,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.format.workq import (
    TTL_MS_MAX,
    make_job_id,
    workq_name,
    workq_priority,
    workq_ttl_ms,
    workq_ttr_ms,
)
from fastjournal.errors import LogCorruptError
from fastjournal.testing.workq_rules import assert_workq_accepts

NUMBER_FORMS: dict[Any, Any] = {
    bytes: bytes(16), bytes | None: None, list[bytes]: [], tuple[int, ...]: (), bool: False,
    list[bytes | int]: [],
}  # fmt: skip
"""A value of each type of a field; all others are numbers."""
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


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\x80" * 11])
def test_uvarint_that_is_cut_or_over_64_bits_is_refused(data: bytes) -> None:
    with pytest.raises(LogCorruptError):
        decode_uvarint(data, 0, len(data))


NUMBERS = [
    (struct, field)
    for struct in (*get_args(Operation), Envelope, Completion)
    for field in struct.__struct_fields__
    if get_type_hints(struct)[field] is int
]


@pytest.mark.parametrize(
    ("struct", "field"), NUMBERS, ids=lambda each: getattr(each, "__name__", each)
)
def test_number_below_the_least_in_a_record_of_ours_is_damage(
    struct: type[msgspec.Struct], field: str
) -> None:
    fields: dict[str, Any] = {
        name: NUMBER_FORMS.get(get_type_hints(struct)[name], 0) for name in struct.__struct_fields__
    }
    # attempts of a limit: -1 is never
    least = -1 if (struct, field) == (Limit, "attempts") else 0
    decode = msgspec.msgpack.Decoder(struct).decode
    assert decode(msgspec.msgpack.encode(struct(**fields | {field: least})))
    with pytest.raises(msgspec.ValidationError, match=f">= {least}"):
        decode(msgspec.msgpack.encode(struct(**fields | {field: least - 1})))


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


# --- logs of workq --------------------------------------------------------------------------------


domains = st.binary(min_size=1, max_size=4000) | st.from_regex(rb"[A-Za-z0-9_.-]+", fullmatch=True)


def test_time_to_live_counts_from_creation_and_is_cut() -> None:
    created = 1_795_165_389_000_000
    assert workq_ttl_ms(0, created) == TTL_MS_MAX
    assert workq_ttl_ms(created + 5_000_999, created) == 5000
    assert workq_ttl_ms(created, created) == workq_ttl_ms(1, created) == 1
    assert workq_ttl_ms(2**64 - 1, created) == TTL_MS_MAX


@given(domains, u64, u64, u64, st.integers(0, 255))
def test_workq_takes_jobs_of_whatever_the_engine_asks_for(
    domain: bytes, lease: int, expires: int, created: int, priority: int
) -> None:
    ttl_ms = workq_ttl_ms(expires, created)
    ttr_ms = workq_ttr_ms(lease)
    head = encode_head(workq_name(domain), ttr_ms, ttl_ms, workq_priority(priority), 0, 0)
    time = encode_time(created)
    record = encode_job(Command.ADD, time, make_job_id(bytes(16)), head, b"", NO_TIME, time)
    assert len(assert_workq_accepts([HEADER + record]).jobs) == 1
