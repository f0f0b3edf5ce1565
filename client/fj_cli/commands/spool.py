"""``fj-cli spool``: look at a local spool."""

from __future__ import annotations

import click

from fj_cli.lazy import LazyGroup

SUBCOMMANDS = {
    "status": ("fj_cli.commands.spool_status", "Show slots, pending and dead counts."),
}


@click.group("spool", cls=LazyGroup, lazy=SUBCOMMANDS)
def command() -> None:
    """Look at a local spool, without a daemon."""
