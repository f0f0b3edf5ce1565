"""``fj-cli log verify``: check a log or a snapshot, and say what is wrong and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fj_cli.logdir import format_option, log_argument, segment_files
from fj_cli.output import counted, note, wants_json, write_json, write_table
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import DONE, REFUSED, json_option

if TYPE_CHECKING:
    from fastjournal.cmdlog.recovery.recover import Diagnostic
    from fastjournal.disk import OsDisk

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
@log_argument
@format_option
@json_option
def command(directory: str, log_format: str | None, as_json: bool | None) -> int:
    """Read every byte of the log, snapshot, archive or journal DIR and check it; changes nothing.

    Exit code 1 where anything is wrong: each finding has the file, the offset and what to do. A
    snapshot is held against its manifest too, and an archive against the checksums in its names.
    Gaps of an archive are named; one is not wrong if ARCHIVE.json tells its reason, or if it is
    before the first file, as a reader of the archive leaves it.
    """
    from fastjournal.cmdlog.locks import lock_to_read
    from fastjournal.cmdlog.log_directory import list_segments
    from fastjournal.cmdlog.recovery.inspect_archive import is_archive, verify_archive
    from fastjournal.cmdlog.recovery.recover import Progress, verify
    from fastjournal.disk import OsDisk
    from fastjournal.foreign.formats import Format
    from fastjournal.foreign.journal_stat import is_finding, open_format

    disk = OsDisk()
    recognized = open_format(disk, directory, Format(log_format) if log_format else None)
    if recognized in (Format.BEANSTALKD, Format.KESTREL):
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
    found = [_fields(one, advice) for one in (*wrong, *told)] + _check_manifest(disk, directory)
    if wants_json(as_json):
        for fields in found:
            write_json(fields)
    elif found:
        write_table(
            None,
            ("what", "file", "offset", "bytes", "finding", "what to do"),
            (
                (f["kind"], f["file"], str(f["offset"]), str(f["bytes"]), f["message"], f["advice"])
                for f in found
            ),
        )
    if len(found) > len(told):
        note(f"{counted(len(found), 'finding')} in {directory}")
        return REFUSED
    whole = f"{counted(len(segments), 'segment')}, {counted(records, 'record')}"
    if archive:
        whole = f"archive, {whole}" + (f", {counted(len(told), 'gap')}" if told else "")
    note(f"{directory} is whole: {whole}")
    return DONE


def _fields(diagnostic: Diagnostic, advice: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": diagnostic.kind,
        "file": diagnostic.path,
        "offset": diagnostic.offset,
        "bytes": diagnostic.bytes,
        "message": diagnostic.message,
        "advice": advice[diagnostic.kind],
    }


def _check_manifest(disk: OsDisk, directory: str) -> list[dict[str, Any]]:
    from fastjournal.cmdlog.snapshot import is_snapshot, verify_snapshot
    from fastjournal.errors import LogCorruptError

    if not is_snapshot(disk, directory):
        return []
    try:
        verify_snapshot(disk, directory)
    except LogCorruptError as error:
        return [
            {
                "kind": "snapshot",
                "file": error.path or directory,
                "offset": error.offset or 0,
                "bytes": 0,
                "message": error.message,
                "advice": _ADVICE["snapshot"],
            }
        ]
    return []
