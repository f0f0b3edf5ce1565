"""The argument that names a command log or a snapshot."""

from __future__ import annotations

import click

from fastjournal.cmdlog.log_directory import list_segments
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
    """Return the numbers of the segments in a directory; a snapshot may have none.

    Raises:
        BadRequestError: There are none: it is another directory that was meant.
    """
    numbers = list_segments(disk, directory)
    if not numbers and not is_snapshot(disk, directory):
        raise BadRequestError(
            f"{directory} holds no segment, such as 000000001.log",
            hint="name the directory of --cmdlog-path, or a snapshot",
        )
    return numbers
