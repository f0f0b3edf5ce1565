"""``fj-cli import kestrel``: the items of a Kestrel's journals."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from fj_cli.importing import import_options, read_and_import


@click.command("kestrel")
@click.option(
    "--opcode-8",
    "opcode8",
    type=click.Choice(["auto", "continue", "state-dump"]),
    default="auto",
    show_default=True,
    help="Meaning of opcode 8; auto: the one with which the rest of its file can be read.",
)
@import_options
def command(ctx: click.Context, directory: str, opcode8: Any, **options: Any) -> int:
    """Set an entry for each waiting item of the journals DIR of a Kestrel, which has to be stopped.

    A queue becomes a domain; items of open transactions wait too. DIR is only read. Ends with
    counts; exit code 1 where something was refused or is damaged.
    """
    from fastjournal.foreign import open_kestrel

    return read_and_import(ctx, partial(open_kestrel, opcode8=opcode8), directory, **options)
