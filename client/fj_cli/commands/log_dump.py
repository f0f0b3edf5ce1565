"""``fj-cli log dump``: every record of a log, decoded, one a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fj_cli.logdir import format_option, log_argument, segment_files
from fj_cli.output import note, wants_json, write_json, write_line
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import DONE, REFUSED, json_option

if TYPE_CHECKING:
    from fastjournal.disk import OsDisk


@click.command("dump")
@log_argument
@click.option("--segment", type=click.IntRange(0), help="Only the segment of this number.")
@format_option
@json_option
def command(
    directory: str, segment: int | None, log_format: str | None, as_json: bool | None
) -> int:
    """Write every record of the log, snapshot, archive or journal DIR, oldest first, one a line.

    Bytes that are no record, and records that cannot be understood, are named on standard error,
    and the rest is written all the same; exit code 1.
    """
    from fastjournal.cmdlog.format.segments import segment_name
    from fastjournal.cmdlog.locks import lock_to_read
    from fastjournal.disk import OsDisk
    from fastjournal.foreign.formats import Format
    from fastjournal.foreign.journal_stat import open_format

    disk = OsDisk()
    found = open_format(disk, directory, Format(log_format) if log_format else None)
    if found in (Format.BEANSTALKD, Format.KESTREL):
        from fj_cli.foreign_log import dump_foreign

        if segment is not None:
            raise click.UsageError(f"a journal of {found} has no segments")
        return dump_foreign(disk, directory, found, in_json=wants_json(as_json))
    with lock_to_read(disk, directory):
        names = segment_files(disk, directory)
        if segment is not None:
            if segment not in names:
                raise click.UsageError(f"there is no {segment_name(segment)} in {directory}")
            names = {segment: names[segment]}
        return _dump(disk, directory, list(names.values()), in_json=wants_json(as_json))


def _dump(disk: OsDisk, directory: str, names: list[str], *, in_json: bool) -> int:
    from fastjournal.cmdlog.format.layout import CRC_BYTES
    from fastjournal.cmdlog.format.records import decode_body
    from fastjournal.cmdlog.recovery.bad_sectors import read_segment
    from fastjournal.cmdlog.recovery.scan import scan_segment
    from fastjournal.errors import LogCorruptError
    from fj_cli.records import record_fields, record_line

    code = DONE
    with ProgressBar("segments") as bar:
        for done, name in enumerate(names):
            bar.update(done, len(names))
            data, _ = read_segment(disk, f"{directory}/{name}")
            scan = scan_segment(data)
            unreadable = [(d.offset, d.end, d.reason) for d in scan.damage]
            for offset, body, end in scan.spans():
                try:
                    record = decode_body(data, offset, body, end - CRC_BYTES)
                except LogCorruptError as error:
                    unreadable.append((offset, end, error.message))
                    continue
                if in_json:
                    place = {"segment": name, "offset": offset, "bytes": end - offset}
                    write_json(place | record_fields(record))
                else:
                    write_line(f"{name}:{offset:<9} {record_line(record)}")
            for offset, end, reason in unreadable:
                code = REFUSED
                note(
                    f"{directory}/{name} at offset {offset}: {end - offset} bytes are no record:"
                    f" {reason} (see: fj-cli log verify {directory})"
                )
    return code
