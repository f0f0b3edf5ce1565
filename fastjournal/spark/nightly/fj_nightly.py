"""Command ``fj-nightly``: snapshot, history, analysis jobs and report, one after the other.

``fastjournal.spark.nightly.run`` has the steps and the tables that it writes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import click
from rich.console import Console

from fastjournal.client import SyncClient
from fastjournal.client.core.client_credentials import credentials_of
from fastjournal.client.core.failures import advise_of_options
from fastjournal.client.core.settings import NAMES, config_files, find_daemon
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    ExtraMissingError,
    FastjournalError,
    JavaMissingError,
    LogCorruptError,
    LogError,
    LogLockedError,
    RemoteLogError,
    StoreRefusedError,
    StoreUnavailableError,
)
from fastjournal.loglines import configure_log
from fastjournal.options import SERVER_DEFAULT, access_options, version_option
from fastjournal.printable import safe_text
from fastjournal.program import prepare_stdio
from fastjournal.spark.cluster.java_errors import root_cause
from fastjournal.stderr_queue import queue_stderr

_WIDTH_OF_FILES = 120
_EXIT_UNAVAILABLE = 69
_EXIT_CODES: tuple[tuple[type[FastjournalError], int], ...] = (
    (CannotConnectError, _EXIT_UNAVAILABLE),
    (ExtraMissingError, _EXIT_UNAVAILABLE),
    (JavaMissingError, _EXIT_UNAVAILABLE),
    (LogLockedError, 75),
    (BadRequestError, 2),
    (StoreUnavailableError, _EXIT_UNAVAILABLE),
    (StoreRefusedError, 2),
    (RemoteLogError, 74),
    (LogError, 74),
    (FastjournalError, 1),
)
"""Exit codes of errors; the first that fits counts."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@version_option("fj-nightly")
@click.option(
    "--server",
    metavar="ADDRESS",
    help="The daemon that takes the snapshot: HOST:PORT, tls://HOST:PORT or unix:PATH."
    + SERVER_DEFAULT,
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
    help="Where tables and reports stand; a path, or a URI that Spark and pyarrow reach.",
)
@click.option(
    "--archive",
    envvar="FASTJOURNAL_ARCHIVE",
    show_envvar=True,
    metavar="DIRECTORY",
    help="The daemon's --archive-dir: its segments become events, and go.",
)
@click.option(
    "--remote-log",
    envvar="FASTJOURNAL_REMOTE_LOG",
    show_envvar=True,
    metavar="URL",
    help="The daemon's --remote-log, instead of --archive and a snapshot: nothing else of its "
    "machine is needed.",
)
@click.option(
    "--history",
    metavar="DIRECTORY",
    help="Directory in which events/ stands; a path or URI.  [default: --output]",
)
@click.option(
    "--date",
    metavar="YYYY-MM-DD",
    help="UTC day of the report.  [default: the one that ended last]",
)
@click.option(
    "--keep-days",
    type=click.IntRange(1),
    metavar="N",
    help="Remove tables and reports of days before the last N.  [default: keep all]",
)
@click.option(
    "--keep-events",
    type=click.IntRange(1),
    metavar="N",
    help="Remove events of days before the last N; tables and reports stay.  [default: keep all]",
)
@click.option(
    "--keep-snapshots",
    type=click.IntRange(1, 65_535),
    default=7,
    show_default=True,
    metavar="N",
    help="Let the daemon remove all snapshots but the N newest: they hold disk space.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark's master.  [default: what spark-submit says, else local[*]]",
)
def command(**options: Any) -> None:
    """Keep the history of the log, run the analysis jobs, and write the report of a day."""
    errors = Console(stderr=True)
    with ExitStack() as stack, errors.status("looking at output and archive") as status:
        from fastjournal.spark.nightly import preparation, run  # noqa: PLC0415 - main tells of a missing extra
        from fastjournal.spark.nightly.report.console import print_report  # noqa: PLC0415 - as above

        night, refused = preparation.prepare(options, stack), None
        if night.remote_log is not None:
            refused = preparation.ensure_checkpoint(night)
            preparation.restrict(night.snapshot)
        elif night.snapshot is None and preparation.needs_snapshot(night):
            status.update("taking a snapshot")
            server, take = _snapshot_taker(options)
            refused = preparation.ensure_snapshot(night, server, take)
            # the events are written before Spark starts
            preparation.restrict(night.snapshot)
        start = partial(preparation.start, options["master"], night.snapshot, stack)
        outcome = run.run_night(start, night, tell=status.update)
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    print_report(outcome.figures, outcome.slow, console)
    click.echo(safe_text(outcome.report))
    if outcome.faults:
        more = len(outcome.faults) - 1
        raise LogCorruptError(
            f"a part of the remote log cannot be read, and is a gap now: {outcome.faults[0]}"
            + (f"; and {more} more" if more else "")
        )
    if refused is not None:
        raise refused


def _snapshot_taker(options: dict[str, Any]) -> tuple[str, Callable[[], str]]:
    """Return the daemon's address, and what takes a snapshot; files for access are read now."""
    given = {name: options[name] for name in NAMES}
    settings = find_daemon(given, os.environ, config_files(os.environ))
    server, credentials = settings["server"], credentials_of(settings)

    def take() -> str:
        with SyncClient(server, tls=credentials.tls, auth=credentials.auth) as client:
            return client.snapshot(keep=options["keep_snapshots"])

    return server, take


def main() -> None:
    """Run ``fj-nightly``.

    Exits with 0 done, 2 usage, 69 no daemon, store, Spark or Java, 74 a log or a disk, 75 another
    run works on the same tables, 1 all else.
    """
    prepare_stdio()
    # Spark's Java writes there, too
    queue_stderr(with_children=True)
    configure_log("warning")
    try:
        command(standalone_mode=True)
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        message = f"{package} is not installed"
        hint = "pip install 'fastjournal[spark]'"
        _fail(FastjournalError(message, hint=hint), _EXIT_UNAVAILABLE)
    except FastjournalError as error:
        _fail(error, next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))
    except Exception as error:
        # PySpark is an extra: its errors are known by their module, all others go on
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        _fail(FastjournalError(f"Spark failed: {root_cause(error).text}"), 1)


def _fail(error: FastjournalError, code: int) -> None:
    advise_of_options(error)
    said = "; ".join([str(error), *getattr(error, "__notes__", ())])
    click.echo(safe_text(f"fj-nightly: {said}"), err=True)
    sys.exit(code)
