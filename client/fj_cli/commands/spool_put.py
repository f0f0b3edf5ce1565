"""``fj-cli spool put``: append work to a local spool, without a daemon."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from fastjournal.clock import SystemClock
from fastjournal.limits import PRIORITY_MAX
from fastjournal.program import open_input
from fj_cli.output import (
    bytes_field,
    note,
    show_bytes,
    write_result,
)
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import (
    DONE,
    DURATION,
    INSTANT,
    NAME,
    REFUSED,
    check_empty,
    json_option,
    queue_option,
)
from fj_cli.text import to_duration_or_none

if TYPE_CHECKING:
    from fastjournal.spool.appending.spool_writer import Spool

_BAD_LINES_SHOWN = 20
_PROGRESS_S = 1.0


@click.command("put")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=str))
@click.argument("value", required=False)
@queue_option("The queue (domain).  [default: the host of the URI]")
@click.option("--uri", type=NAME, help="Resource of the work: one entry of a URI waits.")
@click.option("--unique", type=NAME, help="Of one value one entry waits in the queue.")
@click.option(
    "--key", type=NAME, help="The whole key: replaces a waiting job, waits for a leased one."
)
@click.option("--id", "id_", type=NAME, help="Last part of the key.  [default: time and URI]")
@click.option(
    "--priority", type=click.IntRange(0, PRIORITY_MAX), help="0 runs first.  [default: 128]"
)
@click.option("--not-before", type=INSTANT, help="The work starts no earlier.  [default: now]")
@click.option("--delay", type=DURATION, help="The work starts no earlier than that from now.")
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

    With --uri, --queue or --key one entry is appended, with VALUE, and its key is printed; --empty
    says that there is no VALUE. Without these, each line is an object: queue (or domain), uri,
    unique, key, priority, delay (a duration as fj-cli takes it, or seconds), not_before (an
    instant, or seconds since 1970), id, overwrite, and value (a string, number, boolean or null) or
    value_b64. Lines are appended as soon as they come.

    A bad line is named and left out; the others are appended. Exit code 1: there was one.
    """
    from fastjournal.spool.appending.spool_writer import Spool

    one = any(options[name] is not None for name in ("uri", "domain", "key"))
    if not one and value is not None:
        raise click.UsageError("VALUE needs --uri, --queue or --key; without, JSON lines are read")
    if one:
        check_empty(ctx, value, options["empty"])
    elif options["empty"]:
        raise click.UsageError(
            "--empty needs --uri, --queue or --key; else JSON lines are read", ctx
        )
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
        unique=options["unique"],
        key=options["key"],
        delay=to_duration_or_none(options["delay"]),
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
    from fj_cli.spool_lines import read_batches

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
