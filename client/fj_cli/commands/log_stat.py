"""``fj-cli log stat``: files of a log, and the state of the work in each domain or queue."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from fj_cli.logdir import format_option, log_argument
from fj_cli.output import counted, note, put_bytes, show_bytes, wants_json, write_json, write_table
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import DONE, json_option


@click.command("stat")
@log_argument
@format_option
@json_option
def command(directory: str, log_format: str | None, as_json: bool | None) -> int:
    """Count the live entries of the log, snapshot, archive or journal DIR by domain and state.

    Reads the files without a daemon and changes nothing. An entry whose lease ended after the last
    record counts as leased. In an archive the entries count that its
    segments leave live.
    """
    from fastjournal.clock import SystemClock
    from fastjournal.disk import OsDisk
    from fastjournal.foreign.formats import Format
    from fastjournal.foreign.journal_stat import QueueStat, open_format, stat_journal

    disk = OsDisk()
    found = open_format(disk, directory, Format(log_format) if log_format else None)
    with ProgressBar("reading", unit="bytes") as bar:
        stat = stat_journal(disk, directory, found, SystemClock().now_us(), bar.update)
    rows = [msgspec.structs.asdict(queue) for queue in stat.queues]
    if wants_json(as_json):
        for row in rows:
            write_json(_json_fields(row))
    else:
        names = [name.replace("_", " ") for name in QueueStat.__struct_fields__]
        write_table(None, names, (_cells(row) for row in rows))
    files = f"{counted(stat.files, 'file')}, {stat.file_bytes:,} bytes"
    entries = sum(queue.entries for queue in stat.queues)
    kind = f"{stat.format} archive" if stat.is_archive else stat.format
    text = f"{directory}: {kind}, {files}, {entries:,} live in {len(rows):,} domains"
    if stat.findings:
        text += f"; {counted(stat.findings, 'finding')}, see: fj-cli log verify {directory}"
    note(text)
    return DONE


def _json_fields(row: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"domain": None}
    domain = row.pop("domain")
    if domain is not None:
        del fields["domain"]
        put_bytes(fields, "domain", domain)
    return fields | row


def _cells(row: dict[str, Any]) -> list[str]:
    domain = row.pop("domain")
    name = "(plain entries)" if domain is None else show_bytes(domain)
    return [name, *(f"{number:,}" for number in row.values())]
