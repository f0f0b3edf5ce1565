"""The argument that names a command log or a snapshot."""

from __future__ import annotations

import click

from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.cmdlog.log_directory import list_segments
from fastjournal.cmdlog.recovery.inspect_archive import archived_files, is_archive
from fastjournal.cmdlog.snapshot import is_snapshot
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError

log_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=str)
)

format_option = click.option(
    "--format",
    "log_format",
    type=click.Choice(["fastjournal", "workq", "beanstalkd", "kestrel"]),
    help="Format of the files.  [default: recognized by their names and contents]",
)


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
