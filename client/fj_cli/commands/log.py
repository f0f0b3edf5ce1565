"""``fj-cli log``: inspect a command log, or the journal of another queue, and repair a log.

Repair does what ``fastjournald --repair`` does.
"""

from __future__ import annotations

import os
import pwd
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fastjournal.clock import SystemClock
from fastjournal.errors import BadRequestError
from fj_cli.cli import LazyGroup
from fj_cli.output import (
    bytes_field,
    counted,
    finding_fields,
    note,
    show_domain,
    wants_json,
    write_each,
    write_findings,
    write_json,
    write_line,
)
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import DONE, REFUSED, directory_argument, json_option
from fj_cli.termination import unwound

if TYPE_CHECKING:
    from fastjournal.cmdlog.recovery.recover import Diagnostic, Progress
    from fastjournal.disk import OsDisk
    from fastjournal.foreign.formats import Format
    from fastjournal.foreign.journal_stat import QueueStat

_format_option = click.option(
    "--format",
    "log_format",
    type=click.Choice(["fastjournal", "workq", "beanstalkd", "kestrel"]),
    help="Format of the files.  [default: recognized by their names and contents]",
)

_OF_QUEUES = ("beanstalkd", "kestrel")
"""Formats of journals that are no command log."""

SUBCOMMANDS = {
    "dump": ("log", "Write every record, decoded, one a line."),
    "stat": ("log", "Count what is live, by domain and state."),
    "verify": ("log", "Check everything, and say what is wrong."),
    "repair": ("log", "Take damage out, keeping the bytes aside."),
}


@click.group("log", cls=LazyGroup, lazy=SUBCOMMANDS, words="log")
def log_command() -> None:
    """Look at a command log or a snapshot, without a daemon. Only repair changes anything.

    Dump, stat and verify also read the journals of workq, beanstalkd and Kestrel.
    """


@click.command("dump")
@directory_argument
@click.option("--segment", type=click.IntRange(0), help="Only the segment of this number.")
@_format_option
@json_option
def log_dump_command(
    directory: str, segment: int | None, log_format: str | None, as_json: bool | None
) -> int:
    """Write every record of the log, snapshot, archive or journal DIR, oldest first, one a line.

    Bytes that are no record, and records that cannot be understood, are named on standard error,
    and the rest is written all the same; exit code 1.
    """
    from fastjournal.cmdlog.format.layout import segment_name
    from fastjournal.cmdlog.locks import lock_to_read
    from fj_cli.records import segment_files

    disk, found = _open(directory, log_format)
    if found in _OF_QUEUES:
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


def _open(directory: str, log_format: str | None) -> tuple[OsDisk, Format]:
    """Return the disk, and the format of the files there, which is the given one or is found."""
    from fastjournal.disk import OsDisk
    from fastjournal.foreign.formats import Format
    from fastjournal.foreign.journal_stat import open_format

    disk = OsDisk()
    return disk, open_format(disk, directory, Format(log_format) if log_format else None)


def _dump(disk: OsDisk, directory: str, names: list[str], *, in_json: bool) -> int:
    from fastjournal.cmdlog.format.layout import CRC_BYTES
    from fastjournal.cmdlog.format.records import decode_body
    from fastjournal.cmdlog.recovery.scan import scan_segment
    from fastjournal.cmdlog.recovery.segment_reader import read_segment
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


@click.command("stat")
@directory_argument
@_format_option
@json_option
def log_stat_command(directory: str, log_format: str | None, as_json: bool | None) -> int:
    """Count the live entries of the log, snapshot, archive or journal DIR by domain and state.

    Reads the files without a daemon and changes nothing. An entry whose lease ended after the last
    record counts as leased. In an archive the entries count that its
    segments leave live.
    """
    from fastjournal.foreign.journal_stat import QueueStat, stat_journal

    disk, found = _open(directory, log_format)
    with ProgressBar("reading", unit="bytes") as bar:
        stat = stat_journal(disk, directory, found, SystemClock().now_us(), bar.update)
    write_each(
        stat.queues,
        as_json,
        fields=_json_fields,
        columns=[name.replace("_", " ") for name in QueueStat.__struct_fields__],
        row=_cells,
    )
    files = f"{counted(stat.files, 'file')}, {stat.file_bytes:,} bytes"
    entries = sum(queue.entries for queue in stat.queues)
    kind = f"{stat.format} archive" if stat.is_archive else stat.format
    text = f"{directory}: {kind}, {files}, {entries:,} live in {len(stat.queues):,} domains"
    if stat.findings:
        text += f"; {counted(stat.findings, 'finding')}, see: fj-cli log verify {directory}"
    note(text)
    return DONE


def _json_fields(queue: QueueStat) -> dict[str, Any]:
    counts = msgspec.structs.asdict(queue)
    domain = counts.pop("domain")
    return ({"domain": None} if domain is None else bytes_field("domain", domain)) | counts


def _cells(queue: QueueStat) -> list[str]:
    domain, *counts = msgspec.structs.astuple(queue)
    name = "(plain entries)" if domain is None else show_domain(domain)
    return [name, *(f"{number:,}" for number in counts)]


_BY_ITSELF = "nothing: a daemon that starts on it deals with it and keeps the bytes aside"
_ADVICE = {
    "leftover": "nothing: a daemon that starts on it deletes this file",
    "empty": _BY_ITSELF,
    "torn": _BY_ITSELF + " (while a daemon runs here: a write is on its way)",
    "unfinished": _BY_ITSELF + " (while a daemon runs here: a write is on its way)",
    "damaged": "restore the file, or run fj-cli log repair: it takes these bytes out and keeps them"
    " aside",
    "missing": "restore the file, or run fj-cli log repair: it goes on without it",
    "differs": "restore the file, or run fj-cli log repair: it goes on with what is there",
    "gap": "nothing, if a reason is told, or a reader takes files (fj-nightly, cleanSource)",
    "snapshot": "take another snapshot, or restore the file; the log itself is not concerned",
}


_ARCHIVE_ADVICE = {
    "damaged": "restore the file from a copy of the archive",
    "differs": "restore the file from a copy of the archive, or move it away: it is of another log",
    "missing": "restore the files from a copy of the archive",
}


@click.command("verify")
@directory_argument
@_format_option
@json_option
def log_verify_command(directory: str, log_format: str | None, as_json: bool | None) -> int:
    """Read every byte of the log, snapshot, archive or journal DIR and check it; changes nothing.

    Exit code 1 where anything is wrong: each finding has the file, the offset and what to do. A
    snapshot is held against its manifest too, and an archive against the checksums in its names.
    Gaps of an archive are named; one is not wrong if ARCHIVE.json tells its reason, or if it is
    before the first file, as a reader of the archive leaves it.
    """
    from fastjournal.cmdlog.locks import list_segments, lock_to_read
    from fastjournal.cmdlog.recovery.inspect_archive import is_archive, verify_archive
    from fastjournal.cmdlog.recovery.recover import verify
    from fastjournal.foreign.journal_stat import is_finding
    from fj_cli.records import segment_files

    disk, recognized = _open(directory, log_format)
    if recognized in _OF_QUEUES:
        from fj_cli.foreign_log import verify_foreign

        return verify_foreign(disk, directory, recognized, as_json)
    archive = not list_segments(disk, directory) and is_archive(disk, directory)
    segments = segment_files(disk, directory)
    records = 0
    with lock_to_read(disk, directory), ProgressBar("verifying", unit="bytes") as bar:

        def show(progress: Progress) -> None:
            nonlocal records
            records = progress.records
            bar.update(progress.bytes_done, progress.bytes)

        check = verify_archive if archive else verify
        diagnostics = check(disk, directory, on_progress=show)
    advice = _ADVICE | (_ARCHIVE_ADVICE if archive else {})
    wrong = [one for one in diagnostics if is_finding(disk, one, recognized)]
    told = [one for one in diagnostics if one.kind == "gap"]
    found = [_fields(one) | {"advice": advice[one.kind]} for one in (*wrong, *told)]
    found += _check_manifest(disk, directory)
    write_findings(found, as_json, "what to do")
    if len(found) > len(told):
        note(f"{counted(len(found), 'finding')} in {directory}")
        return REFUSED
    whole = f"{counted(len(segments), 'segment')}, {counted(records, 'record')}"
    if archive:
        whole = f"archive, {whole}" + (f", {counted(len(told), 'gap')}" if told else "")
    note(f"{directory} is whole: {whole}")
    return DONE


def _fields(one: Diagnostic) -> dict[str, Any]:
    return finding_fields(one.kind, one.path, one.offset, one.bytes, one.message)


def _check_manifest(disk: OsDisk, directory: str) -> list[dict[str, Any]]:
    from fastjournal.cmdlog.snapshot import is_snapshot, verify_snapshot
    from fastjournal.errors import LogCorruptError

    if not is_snapshot(disk, directory):
        return []
    try:
        verify_snapshot(disk, directory)
    except LogCorruptError as error:
        path = error.path or directory
        fields = finding_fields("snapshot", path, error.offset or 0, 0, error.message)
        return [fields | {"advice": _ADVICE["snapshot"]}]
    return []


_DOES = {
    "leftover": ("deletes the file", "deleted"),
    "empty": ("removes the file, keeping what it holds aside", "removed"),
    "torn": ("cuts these bytes off and keeps them aside", "cut off"),
    "unfinished": ("cuts these records off and keeps them aside", "cut off"),
    "damaged": ("takes these bytes out and keeps them aside", "taken out"),
    "missing": ("notes that the segment is gone", "noted as gone"),
    "differs": ("goes on with what is there", "taken as it is"),
}
"""By kind of diagnostic: what a repair does, and what it has done."""


@click.command("repair")
@directory_argument
@click.option("--dry-run", is_flag=True, help="Only say what would be done; changes nothing.")
@json_option
def log_repair_command(directory: str, dry_run: bool, as_json: bool | None) -> int:
    """Take damaged bytes out of the log DIR, so that a daemon starts on it.

    The same as 'fastjournald --repair', without a start: every byte that is taken out is kept
    beside its segment, and listed. No daemon may run on the log. Entries lost with the bytes stay
    lost: restore the file instead if there is a good copy.
    """
    from fastjournal.cmdlog.locks import lock_append, lock_to_read
    from fastjournal.cmdlog.recovery.recover import recover, verify
    from fastjournal.cmdlog.snapshot import MANIFEST_NAME, is_snapshot
    from fastjournal.disk import OsDisk
    from fj_cli.records import segments_in

    disk = OsDisk()
    segments_in(disk, directory)
    if is_snapshot(disk, directory):
        raise BadRequestError(
            f"{directory} is a snapshot, which never changes",
            hint=f"copy it, remove {MANIFEST_NAME} from the copy, and repair that",
        )
    with unwound(), ProgressBar("reading", unit="bytes") as bar:

        def show(progress: Progress) -> None:
            bar.update(progress.bytes_done, progress.bytes)

        if dry_run:
            with lock_to_read(disk, directory):
                diagnostics = verify(disk, directory, on_progress=show)
        else:
            now_us = SystemClock().now_us()
            with closing(lock_append(disk, directory)):
                done = recover(disk, directory, now_us=now_us, repair=True, on_progress=show)
            diagnostics = done.diagnostics
    does = 0 if dry_run else 1
    found = [
        _fields(one) | {"action": _DOES[one.kind][does], "kept": one.kept} for one in diagnostics
    ]
    write_findings(found, as_json, "repair", "kept as")
    if not diagnostics:
        note(f"{directory} is whole: nothing to repair")
        return DONE
    if dry_run:
        note(f"{counted(len(diagnostics), 'finding')} in {directory}; nothing was changed")
        return REFUSED
    _tell_owner(directory)
    number = counted(len(diagnostics), "finding")
    note(f"{directory} is repaired: {number}; a daemon can start on it")
    return DONE


def _tell_owner(directory: str) -> None:
    """Say so where the log belongs to somebody else."""
    owner = os.stat(directory).st_uid
    if owner == os.geteuid():
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"user {owner}"
    if os.geteuid() == 0:
        note(f"{directory} belongs to {name}: so do the files that were written, as those before")
    else:
        note(f"{directory} belongs to {name}, but you wrote its files: see that it may read them")
