"""``fj-cli log``: look at a command log."""

from __future__ import annotations

import click

from fj_cli.lazy import LazyGroup

SUBCOMMANDS = {
    "dump": ("fj_cli.commands.log_dump", "Write every record, decoded, one a line."),
    "verify": ("fj_cli.commands.log_verify", "Check everything, and say what is wrong."),
}


@click.group("log", cls=LazyGroup, lazy=SUBCOMMANDS)
def command() -> None:
    """Look at a command log or a snapshot, without a daemon. Changes nothing."""
