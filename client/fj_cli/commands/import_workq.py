"""``fj-cli import workq``: the jobs of a workq-server's command log."""

from __future__ import annotations

from typing import Any

import click

from fj_cli.importing import import_options, read_and_import, set_limits_option


@click.command("workq")
@set_limits_option
@import_options
def command(ctx: click.Context, directory: str, **options: Any) -> int:
    """Set an entry for each live job of the log DIR of a workq-server, which has to be stopped.

    Domain, priority, not-before, expiry and value are those of a daemon that starts on the log;
    failed jobs are buried. Attempts and leases are not carried over. DIR is only read. Ends with
    counts; exit code 1: a job was refused, or the log is damaged.
    """
    from fastjournal.foreign import open_workq

    return read_and_import(ctx, open_workq, directory, **options)
