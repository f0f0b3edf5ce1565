"""JSON lines to work of a spool: decoded in bulk; a bad line is named and left out."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import msgspec

from fastjournal.errors import BadRequestError
from fastjournal.keys import queue_of
from fastjournal.limits import SPOOL_FRAME_BYTES_MAX
from fastjournal.spool.bulk import Work, WorkEncoder
from fastjournal.time_texts import parse_duration, parse_instant
from fastjournal.times import check_instant, duration_us, instant_us
from fastjournal.versioned_json import json_fault

CHUNK_BYTES = 256 * 1024
"""Lines that are spooled in one write, about."""

LINE_BYTES_MAX = 2 * SPOOL_FRAME_BYTES_MAX
"""A longer line holds more than a frame may, however its bytes are escaped."""


class SpoolLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One line: an object; the names are those of ``fj-cli set``."""

    value: str | int | float | bool | None = ""
    value_b64: str | None = None
    uri: str | None = None
    domain: str | None = None
    priority: int | None = None
    not_before: str | float | None = None
    not_before_us: int | None = None
    id: str | None = None
    overwrite: bool = False
    unique: str | None = None
    delay: str | float | None = None
    queue: str | None = None
    key: str | None = None


class BadLine(NamedTuple):
    """One line that is no work."""

    number: int
    text: bytes
    error: str


class LineBatch(NamedTuple):
    """Records of some lines, and the lines that are none."""

    records: list[bytes]
    bad: list[BadLine]


def read_batches(source: BinaryIO, now_us: Callable[[], int]) -> Iterator[LineBatch]:
    """Read lines until the end; yield the lines that have arrived at once.

    Args:
        source: Lines; one without a newline at the end counts.
        now_us: The instant from which ``+10m`` counts.
    """
    encoder, decoder, number = WorkEncoder(), msgspec.json.Decoder(SpoolLine), 0
    for chunk in _chunks(source):
        records: list[bytes] = []
        bad: list[BadLine] = []
        try:
            for line in decoder.decode_lines(chunk):
                records.append(_record(encoder, line, now_us))
        except (msgspec.MsgspecError, UnicodeDecodeError, BadRequestError, TypeError):
            # found again by itself, with its number: earlier lines are encoded again
            records.clear()
            for text in chunk.removesuffix(b"\n").split(b"\n"):
                number += 1
                if not text.strip():
                    continue
                try:
                    line = decoder.decode(text)
                    records.append(_record(encoder, line, now_us))
                except BadRequestError as error:
                    from fj_cli.advice import advise  # noqa: PLC0415 - loads parts of the client

                    advise(error)
                    bad.append(BadLine(number, text, str(error)))
                except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
                    bad.append(BadLine(number, text, json_fault(text, error)))
        else:
            number += chunk.count(b"\n")
        yield LineBatch(records, bad)


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    """Give whole lines, some at a time.

    Raises:
        BadRequestError: A line is longer than any request.
    """
    parts: list[bytes] = []
    size = 0
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    while data := read(CHUNK_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join((*parts, data[:end]))
            parts.clear()
            size = 0
        parts.append(data[end:])
        size += len(data) - end
        if size > LINE_BYTES_MAX:
            raise BadRequestError(
                f"a line has over {LINE_BYTES_MAX} bytes", hint="write one JSON object a line"
            )
    if size:
        yield b"".join(parts)


def _record(encoder: WorkEncoder, line: SpoolLine, now_us: Callable[[], int]) -> bytes:
    value: str | int | float | bool | bytes | None = line.value
    if line.value_b64 is not None:
        if value != "":
            raise BadRequestError("value and value_b64: give one of them")
        try:
            value = base64.b64decode(line.value_b64, validate=True)
        except binascii.Error as error:
            raise BadRequestError(f"value_b64 is no base64: {error}") from error
    not_before_us = line.not_before_us
    if line.not_before is not None:
        if not_before_us is not None:
            raise BadRequestError("not_before and not_before_us: give one of them")
        given = line.not_before
        if isinstance(given, str):
            not_before_us = check_instant(f"not_before {given}", parse_instant(given, now_us()))
        else:
            not_before_us = instant_us("not_before", given)
    delay_us = None
    if line.delay is not None:
        given = line.delay
        delay_us = parse_duration(given) if isinstance(given, str) else duration_us("delay", given)
    queue = queue_of(line.queue, line.domain)
    work = Work(
        *(value, line.uri, queue, line.priority, not_before_us, line.id, line.overwrite),
        *(line.unique, delay_us, line.key),
    )
    return encoder.encode(work)[1]
