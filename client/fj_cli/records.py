"""Segments of a command log; their records as JSON objects, and as lines for people."""

from __future__ import annotations

from typing import Any

import msgspec

from fastjournal.cmdlog.format.envelope import Completion, Envelope, Failure, is_ours
from fastjournal.cmdlog.format.layout import Command, segment_name
from fastjournal.cmdlog.format.operation_records import tag_of, unpack_content
from fastjournal.cmdlog.format.records import Record
from fastjournal.cmdlog.locks import list_segments
from fastjournal.cmdlog.recovery.inspect_archive import archived_files, is_archive
from fastjournal.cmdlog.snapshot import is_snapshot
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.keys import unique_of
from fastjournal.time_texts import format_instant
from fj_cli.output import bytes_field, show_bytes


def segments_in(disk: OsDisk, directory: str) -> list[int]:
    """Return the numbers of the segments in a log or a snapshot, which may have none.

    Raises:
        BadRequestError: There are none: it is another directory that was meant.
    """
    numbers = list_segments(disk, directory)
    if not numbers and not is_snapshot(disk, directory):
        if is_archive(disk, directory):
            raise BadRequestError(
                f"{directory} is the archive of a log",
                hint="name the directory of --cmdlog-path, or a snapshot; fj-cli log stat, verify"
                " and dump read an archive",
            )
        raise BadRequestError(
            f"{directory} holds no segment, such as 000000001.log",
            hint="name the directory of --cmdlog-path, or a snapshot",
        )
    return numbers


def segment_files(disk: OsDisk, directory: str) -> dict[int, str]:
    """Return the file names of the segments of a log, a snapshot or an archive, by number.

    Raises:
        BadRequestError: There are none: it is another directory that was meant.
    """
    if list_segments(disk, directory) or not is_archive(disk, directory):
        return {number: segment_name(number) for number in segments_in(disk, directory)}
    files = archived_files(disk, directory)
    return {number: versions[-1][0].name for number, versions in files.items()}


_KINDS: dict[type, str] = {Envelope: "entry", Completion: "completion", Failure: "failure"}
_WITH_JOB = (Command.ADD, Command.SCHEDULE)
_LINE_CHARACTERS = 60
_IN_HEX = frozenset({"job_id", "facts", "priorities", "numbers"})
"""Fields of numbers and identifiers, in no text."""


def record_fields(record: Record) -> dict[str, Any]:
    """Return the fields of a record. Times are microseconds, as their names say.

    Bytes of fastjournald are decoded under ``entry``, ``operation``, ``completion`` or ``failure``;
    bytes of workq under ``payload`` or ``result``.
    """
    fields: dict[str, Any] = {
        "time_us": record.time_us,
        "command": record.command.name.lower(),
        "job_id": record.job_id.hex(),
    }
    if record.command in _WITH_JOB:
        fields |= {
            "name": record.name,
            "priority": record.priority,
            "ttr_ms": record.ttr_ms,
            "ttl_ms": record.ttl_ms,
            "max_attempts": record.max_attempts,
            "max_fails": record.max_fails,
            "created_us": record.created_us,
        }
        if record.command is Command.SCHEDULE:
            fields["not_before_us"] = record.not_before_us
        _put_content(fields, "payload", record.payload, record)
    elif record.result:
        _put_content(fields, "result", record.result, record)
    return fields


def record_line(record: Record) -> str:
    """Return a record for people: time, command, job, and its most important part."""
    time = "no time" if record.time_us is None else format_instant(record.time_us)
    fields = record_fields(record)
    words = [f"{time:27} {fields['command']:15} {fields['job_id']}"]
    if record.command in _WITH_JOB:
        words.append(record.name)
    entry = fields.get("entry")
    if entry is not None:
        words.append(_text(entry, "key"))
        unique = unique_of(entry.get("key", "").encode(), (entry.get("uri") or "").encode())
        if unique is not None:
            words.append(f"unique={_brief(unique.decode())}")
        elif entry.get("uri") or entry.get("uri_b64"):
            words.append(f"uri={_text(entry, 'uri')}")
        words.append(f"value={_text(entry, 'value')}")
    for name in ("operation", "completion", "failure", "payload", "payload_b64", "result"):
        if name in fields:
            words.append(f"{name}={_brief(fields[name])}")
    return " ".join(words)


def _put_content(fields: dict[str, Any], name: str, data: bytes, record: Record) -> None:
    if not is_ours(data):
        fields |= bytes_field(name, data)
        return
    try:
        content = unpack_content(record)
        assert content is not None
    except LogCorruptError as error:
        fields[f"{name}_error"] = error.message
        fields |= bytes_field(name, data)
        return
    kind = _KINDS.get(type(content), "operation")
    decoded = {"op": tag_of(content)} if kind == "operation" else {}
    fields[kind] = decoded | _readable(msgspec.structs.asdict(content))


def _readable(content: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, bytes) and name in _IN_HEX:
            fields[name] = value.hex()
        elif isinstance(value, list):
            fields |= _readable({f"{name}.{index}": item for index, item in enumerate(value)})
        else:
            fields |= bytes_field(name, value) if isinstance(value, bytes) else {name: value}
    return fields


def _text(fields: dict[str, Any], name: str) -> str:
    text = str(fields[name]) if name in fields else f"base64:{fields[name + '_b64']}"
    return _brief(text)


def _brief(content: Any) -> str:
    if isinstance(content, dict):
        content = " ".join(f"{k}={v}" for k, v in content.items())
    return show_bytes(str(content).encode("utf-8", "replace"), _LINE_CHARACTERS)
