"""``fj-nightly``: has a snapshot taken, exports it and runs the analysis jobs over it.

``fastjournal.spark.report`` has the files that it writes.
"""

from __future__ import annotations

import os
import sys

import click
from rich.console import Console

from fastjournal.client import SyncClient
from fastjournal.client.core.access import load_access
from fastjournal.disk import OsDisk
from fastjournal.errors import (
    CannotConnectError,
    FastjournalError,
    JavaMissingError,
    LogError,
)
from fastjournal.options import access_options
from fastjournal.printable import safe_text

_WIDTH_OF_FILES = 120
_EXIT_UNAVAILABLE = 69
_EXIT_IO = 74


@click.command()
@click.option(
    "--server",
    envvar="FASTJOURNAL_SERVER",
    default="127.0.0.1:9923",
    show_default=True,
    metavar="ADDRESS",
    help="The daemon that takes the snapshot: HOST:PORT, tls://HOST:PORT or unix:PATH.",
)
@access_options
@click.option(
    "--snapshot",
    metavar="DIRECTORY",
    help="Work on this snapshot instead of taking one; a path or URI.",
)
@click.option(
    "--output",
    required=True,
    metavar="DIRECTORY",
    help="Where the dated directories stand; a path, or a URI that Spark and pyarrow reach.",
)
@click.option(
    "--archive",
    envvar="FASTJOURNAL_ARCHIVE",
    metavar="DIRECTORY",
    help="The daemon's --archive-dir: its segments become the table OUTPUT/events, and go.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark's master.  [default: what spark-submit says, else local[*]]",
)
def command(
    server: str,
    snapshot: str | None,
    output: str,
    archive: str | None,
    master: str | None,
    **files: str | None,
) -> None:
    """Take a snapshot, save its entries as Parquet, and run the analysis jobs over it."""
    from fastjournal.spark.event_table import EventTable  # noqa: PLC0415 - main tells of a missing extra
    from fastjournal.spark.files import LogDirectory, modes_of  # noqa: PLC0415 - the same
    from fastjournal.spark.report import print_report, run_jobs  # noqa: PLC0415 - the same
    from fastjournal.spark.session import (  # noqa: PLC0415 - the same
        SMALL_BYTES,
        SMALL_OPTIONS,
        start_session,
    )

    errors = Console(stderr=True)
    with errors.status("taking a snapshot") as status:
        if snapshot is None:
            access = load_access(**files)
            with SyncClient(server, tls=access.tls, auth=access.auth) as client:
                snapshot = client.snapshot()
        status.update("starting Spark")
        directory = LogDirectory(snapshot)
        size = sum(segment.bytes for segment in directory.segments)
        options = dict(SMALL_OPTIONS) if size <= SMALL_BYTES else {}
        # the output of a log is readable only by users who may read the log
        file_mode, directory_mode = modes_of(directory)
        mask = 0o777 & ~(file_mode | directory_mode)
        os.umask(os.umask(0o077) | mask)
        options["spark.hadoop.fs.permissions.umask-mode"] = f"{mask:03o}"
        if archive is not None:
            status.update("taking the archive")
            EventTable(OsDisk(), f"{output}/events").update(archive)
            status.update("starting Spark")
        spark = start_session(master, name="fj-nightly", options=options)
        try:
            status.update("running the jobs")
            report = run_jobs(spark, snapshot, output)
        finally:
            spark.stop()
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    print_report(report, console)
    click.echo(safe_text(report.directory))


def main() -> None:
    """Run ``fj-nightly``.

    Exits with 0 done, 2 usage, 69 no daemon, Spark or Java, 74 a log or a disk, 1 all else.
    """
    try:
        command(standalone_mode=True)
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        message = f"{package} is not installed"
        hint = "pip install 'fastjournal[spark]'"
        _fail(FastjournalError(message, hint=hint), _EXIT_UNAVAILABLE)
    except (CannotConnectError, JavaMissingError) as error:
        _fail(error, _EXIT_UNAVAILABLE)
    except LogError as error:
        _fail(error, _EXIT_IO)
    except FastjournalError as error:
        _fail(error, 1)


def _fail(error: FastjournalError, code: int) -> None:
    click.echo(safe_text(f"fj-nightly: {error}"), err=True)
    sys.exit(code)
