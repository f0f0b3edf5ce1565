"""``fj-cli spool``: append to a local spool, and look after it."""

from __future__ import annotations

import click

from fj_cli.lazy import LazyGroup

SUBCOMMANDS = {
    "put": ("fj_cli.commands.spool_put", "Append work, from arguments or JSON lines."),
    "dead": ("fj_cli.commands.spool_dead", "List, show, retry and drop dead letters."),
    "status": ("fj_cli.commands.spool_status", "Show slots, pending and dead counts."),
}


@click.group("spool", cls=LazyGroup, lazy=SUBCOMMANDS)
def command() -> None:
    """Append to a local spool, and look after it, without a daemon."""
