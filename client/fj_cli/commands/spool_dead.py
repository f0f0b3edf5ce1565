"""``fj-cli spool dead``: dead letters of a local spool."""

from __future__ import annotations

import click

from fj_cli.lazy import LazyGroup

SUBCOMMANDS = {
    "list": ("fj_cli.commands.spool_dead_list", "List the pieces in dead/, and why."),
    "show": ("fj_cli.commands.spool_dead_show", "Show one piece: reason, request, bytes."),
    "retry": ("fj_cli.commands.spool_dead_retry", "Put requests back into the spool."),
    "drop": ("fj_cli.commands.spool_dead_drop", "Delete pieces for good."),
}


@click.group("dead", cls=LazyGroup, lazy=SUBCOMMANDS)
def command() -> None:
    """Dead letters of a spool: records that no daemon takes, and damage."""
