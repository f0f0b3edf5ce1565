"""``fj-cli import``: import the pending jobs of another queue into the daemon."""

from __future__ import annotations

import click

from fj_cli.lazy import LazyGroup

SUBCOMMANDS = {
    "beanstalkd": ("fj_cli.commands.import_beanstalkd", "The jobs of a beanstalkd's binlog."),
    "kestrel": ("fj_cli.commands.import_kestrel", "The items of a Kestrel's journals."),
    "workq": ("fj_cli.commands.import_workq", "The jobs of a workq-server's command log."),
}


@click.group("import", cls=LazyGroup, lazy=SUBCOMMANDS)
def command() -> None:
    """Import the pending jobs of another queue into the daemon, as persistent work.

    A second import changes nothing, or finishes an interrupted one.
    """
