"""``fj-cli spool put``: append work to a local spool, without a daemon.

JSON lines are decoded in bulk. A bad line is named and left out.
"""

from __future__ import annotations

import base64
import binascii
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click
import msgspec

from fastjournal.clock import SystemClock
from fastjournal.errors import BadRequestError
from fastjournal.limits import PRIORITY_DEFAULT, SPOOL_FRAME_BYTES_MAX
from fastjournal.program import open_input
from fastjournal.spool.bulk import Work, WorkEncoder
from fastjournal.time_texts import parse_instant
from fastjournal.times import check_instant, instant_us
from fastjournal.versioned_json import json_fault
from fj_cli.output import bytes_field, note, show_bytes, write_result
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import (
    DONE,
    INSTANT,
    NAME,
    REFUSED,
    check_empty,
    json_option,
    priority_option,
)

if TYPE_CHECKING:
    from fastjournal.spool.appending.spool_writer import Spool


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
    priority: int = PRIORITY_DEFAULT
    not_before: str | float | None = None
    not_before_us: int | None = None
    id: str | None = None
    overwrite: bool = False


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
                    from fj_cli.advice import advise

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
    work = Work(value, line.uri, line.domain, line.priority, not_before_us, line.id, line.overwrite)
    return encoder.encode(work)[1]


_BAD_LINES_SHOWN = 20
_PROGRESS_S = 1.0


@click.command("put")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=str))
@click.argument("value", required=False)
@click.option("--domain", type=NAME, help="The queue.  [default: the host of the URI]")
@click.option("--uri", type=NAME, help="Resource of the work: one entry of a URI waits.")
@click.option("--id", "id_", type=NAME, help="Last part of the key.  [default: time and URI]")
@priority_option
@click.option("--not-before", type=INSTANT, help="The work starts no earlier.  [default: now]")
@click.option("--empty", is_flag=True, help="There is no VALUE: it is empty.")
@click.option("--overwrite", is_flag=True, help="Replace what stands under the key.")
@click.option("--durable", is_flag=True, help="On the disk before it ends: survives a power cut.")
@click.option("--group", metavar="NAME", help="Group that shares the spool, if it is created.")
@click.option(
    "--progress", is_flag=True, help="A line each second where standard error is no terminal."
)
@click.option(
    "--rejects",
    type=click.Path(dir_okay=False, path_type=str),
    help="Append bad lines to this file, as they came.",
)
@json_option
@click.pass_context
def spool_put_command(
    ctx: click.Context,
    /,
    directory: str,
    value: str | None,
    as_json: bool | None,
    **options: Any,
) -> int:
    """Append work to the spool DIR: one entry, or each JSON line of standard input.

    With --uri or --domain one entry is appended, with VALUE, and its key is printed; --empty says
    that there is no VALUE. Without --uri and --domain, each line is an object: uri, domain,
    priority, not_before (an instant as fj-cli takes it, or seconds since 1970), id, overwrite, and
    value (a string, number, boolean or null) or value_b64. Lines are appended as soon as they come.

    A bad line is named and left out; the others are appended. Exit code 1: there was one.
    """
    from fastjournal.spool.appending.spool_writer import Spool

    one = options["uri"] is not None or options["domain"] is not None
    if not one and value is not None:
        raise click.UsageError("VALUE needs --uri or --domain; without, JSON lines are read")
    if one:
        check_empty(ctx, value, options["empty"])
    elif options["empty"]:
        raise click.UsageError("--empty needs --uri or --domain; without, JSON lines are read", ctx)
    lines = None if one else open_input()
    with Spool(directory, durable=options["durable"], group=options["group"]) as spool:
        if lines is None:
            _put_one(spool, value, options, as_json=as_json)
            return DONE
        return _put_lines(spool, lines, options, as_json=as_json)


def _put_one(
    spool: Spool, value: str | None, options: dict[str, Any], *, as_json: bool | None
) -> None:
    key = spool.append(
        domain=options["domain"],
        uri=options["uri"],
        id=options["id_"],
        priority=options["priority"],
        not_before_us=options["not_before"],
        overwrite=options["overwrite"],
        value=_value(value),
    )
    write_result(as_json, bytes_field("key", key), show_bytes(key))


def _value(word: str | None) -> str | bytes:
    """Return an argument as a string; as bytes where it is no UTF-8."""
    data = os.fsencode(word or "")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _put_lines(
    spool: Spool, lines: BinaryIO, options: dict[str, Any], *, as_json: bool | None
) -> int:
    from fastjournal.spool.slots import FILE_MODE
    from fj_cli.commands.spool_put import read_batches

    spooled = bad = 0
    writes_lines = options["progress"] and not sys.stderr.isatty()  # there the bar is shown

    def count(records: int) -> None:
        nonlocal spooled
        spooled += records

    next_line_s = time.monotonic() + _PROGRESS_S
    with ExitStack() as stack:
        rejects = None
        if options["rejects"] is not None:
            # no wider than the spool
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = os.open(options["rejects"], flags, FILE_MODE)
            rejects = stack.enter_context(open(descriptor, "ab"))
        try:
            with ProgressBar("spooling") as bar:
                for records, bad_lines in read_batches(lines, SystemClock().now_us):
                    spool.append_records(records, count)
                    for number, text, error in bad_lines:
                        bad += 1
                        if bad <= _BAD_LINES_SHOWN:
                            note(f"fj-cli: line {number}: {error}")
                        if rejects is not None:
                            rejects.write(text + b"\n")
                    bar.update(spooled, None)
                    if writes_lines and time.monotonic() >= next_line_s:
                        next_line_s = time.monotonic() + _PROGRESS_S
                        note(f"{spooled:,} spooled")
        finally:
            # also where the spool is full: the caller knows from where to go on
            summary = f"{spooled:,} spooled" + f", {bad:,} bad lines left out" * bool(bad)
            write_result(as_json, {"spooled": spooled, "bad": bad}, summary, note)
    return REFUSED if bad else DONE
