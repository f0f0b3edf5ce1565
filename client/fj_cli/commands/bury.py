"""``fj-cli bury``: make an entry a dead letter."""

from __future__ import annotations

import click

from fj_cli.options import NAME, b64_option, open_client, server_option


@click.command("bury")
@click.argument("key", type=NAME)
@click.option("--token", type=click.IntRange(0), help="Only if this is its lease token.")
@click.option("--reason", default="", metavar="TEXT", help="Why; 'fj-cli stats KEY' shows it.")
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, token: int | None, reason: str) -> None:
    """Bury the entry under KEY: NEXT does not deliver it until it is kicked.

    Without --token this ends a lease, and whoever works on it cannot complete it any more.
    """
    with open_client(ctx) as client:
        client.bury(key, token, reason=reason)
