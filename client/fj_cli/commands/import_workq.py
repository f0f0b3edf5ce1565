"""``fj-cli import workq``: the jobs of a workq-server's command log."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from fj_cli.importing import run_import, uri_option
from fj_cli.options import json_option, server_option
from fj_cli.progress import ProgressBar

if TYPE_CHECKING:
    from fastjournal.cmdlog.recovery.inspect_log import Progress


@click.command("workq")
@click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=str)
)
@uri_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, directory: str, uri_from_body: bool, as_json: bool | None) -> int:
    """Set an entry for each live job of the log DIR of a workq-server, which has to be stopped.

    Domain, priority, not-before, expiry and value are as a daemon makes them that starts on the
    log; what has failed is buried. Attempts are not carried over, and who worked on a job has lost
    it. DIR is only read. Ends with counts; exit code 1 where something was refused or is damaged.
    """
    from fastjournal.disk import OsDisk
    from fastjournal.foreign import open_workq

    with ExitStack() as kept:
        with ProgressBar("reading", unit="bytes") as bar:

            def show(progress: Progress) -> None:
                bar.update(progress.bytes_done, progress.bytes)

            journal = kept.enter_context(open_workq(OsDisk(), directory, on_progress=show))
        return run_import(ctx, journal, uri_from_body=uri_from_body, as_json=as_json)
