"""``fj-cli log repair``: take damage out of a log, as ``fastjournald --repair`` does."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import click

from fastjournal.errors import BadRequestError
from fj_cli.logdir import log_argument, segments_in
from fj_cli.output import counted, note, wants_json, write_json, write_table
from fj_cli.progress import ProgressBar
from fj_cli.shared_options import DONE, REFUSED, json_option
from fj_cli.termination import unwound

if TYPE_CHECKING:
    from fastjournal.cmdlog.recovery.recover import Diagnostic, Progress

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
@log_argument
@click.option("--dry-run", is_flag=True, help="Only say what would be done; changes nothing.")
@json_option
def command(directory: str, dry_run: bool, as_json: bool | None) -> int:
    """Take damaged bytes out of the log DIR, so that a daemon starts on it.

    The same as 'fastjournald --repair', without a start: every byte that is taken out is kept
    beside its segment, and listed. No daemon may run on the log. Entries lost with the bytes stay
    lost: restore the file instead if there is a good copy.
    """
    from fastjournal.clock import SystemClock
    from fastjournal.cmdlog.locks import lock_append, lock_to_read
    from fastjournal.cmdlog.recovery.recover import recover, verify
    from fastjournal.cmdlog.snapshot import MANIFEST_NAME, is_snapshot
    from fastjournal.disk import OsDisk

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
            lock = lock_append(disk, directory)
            try:
                diagnostics = recover(
                    disk,
                    directory,
                    now_us=SystemClock().now_us(),
                    repair=True,
                    on_progress=show,
                ).diagnostics
            finally:
                lock.close()
    _write(diagnostics, as_json, dry_run=dry_run)
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


def _write(diagnostics: list[Diagnostic], as_json: bool | None, *, dry_run: bool) -> None:
    rows = [
        {
            "kind": diagnostic.kind,
            "file": diagnostic.path,
            "offset": diagnostic.offset,
            "bytes": diagnostic.bytes,
            "message": diagnostic.message,
            "action": _DOES[diagnostic.kind][0 if dry_run else 1],
            "kept": diagnostic.kept,
        }
        for diagnostic in diagnostics
    ]
    if wants_json(as_json):
        for row in rows:
            write_json(row)
    elif rows:
        write_table(
            None,
            ("what", "file", "offset", "bytes", "finding", "repair", "kept as"),
            (tuple("" if cell is None else str(cell) for cell in row.values()) for row in rows),
        )
