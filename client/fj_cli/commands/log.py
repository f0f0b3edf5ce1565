"""``fj-cli log``: inspect a command log, and repair it."""

from __future__ import annotations

import click

from fj_cli.lazy import LazyGroup

SUBCOMMANDS = {
    "dump": ("fj_cli.commands.log_dump", "Write every record, decoded, one a line."),
    "stat": ("fj_cli.commands.log_stat", "Count what is live, by domain and state."),
    "verify": ("fj_cli.commands.log_verify", "Check everything, and say what is wrong."),
    "repair": ("fj_cli.commands.log_repair", "Take damage out, keeping the bytes aside."),
}


@click.group("log", cls=LazyGroup, lazy=SUBCOMMANDS)
def command() -> None:
    """Look at a command log or a snapshot, without a daemon. Only repair changes anything.

    Dump, stat and verify also read the journals of workq, beanstalkd and Kestrel.
    """
