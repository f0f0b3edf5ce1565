"""``fj-cli bury``: set an entry aside."""

from __future__ import annotations

import click

from fj_cli.options import open_client, server_option
from fj_cli.output import argument_bytes


@click.command("bury")
@click.argument("key")
@click.option("--token", type=click.IntRange(0), help="Only if this is its lease token.")
@click.option("--reason", default="", metavar="TEXT", help="Why; 'fj-cli stats KEY' shows it.")
@server_option
@click.pass_context
def command(ctx: click.Context, key: str, token: int | None, reason: str) -> None:
    """Set the entry under KEY aside: it is not handed out until it is kicked.

    Without --token this ends a lease, and whoever works on it cannot complete it any more.
    """
    with open_client(ctx) as client:
        client.bury(argument_bytes(key), token, reason=reason)
