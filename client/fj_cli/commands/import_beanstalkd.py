"""``fj-cli import beanstalkd``: the jobs of a beanstalkd's binlog."""

from __future__ import annotations

from typing import Any

import click

from fj_cli.importing import import_options, read_and_import, set_limits_option


@click.command("beanstalkd")
@set_limits_option
@import_options
def command(ctx: click.Context, directory: str, **options: Any) -> int:
    """Set an entry for each job in the binlog DIR of a beanstalkd, which has to be stopped.

    A tube becomes a domain; a delayed job waits for its instant, a buried one stays buried, a
    reserved one is ready. Priorities over 255 are cut to 255. DIR is only read. Ends with counts;
    exit code 1 where something was refused or is damaged.
    """
    from fastjournal.foreign import open_beanstalkd

    return read_and_import(ctx, open_beanstalkd, directory, **options)
