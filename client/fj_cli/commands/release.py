"""``fj-cli release``: give a leased entry back."""

from __future__ import annotations

import click

from fj_cli.options import DURATION, open_client, server_option
from fj_cli.output import argument_bytes


@click.command("release")
@click.argument("key")
@click.argument("token", type=click.IntRange(0))
@click.option("--delay", type=DURATION, help="It is due again after that long.")
@server_option
@click.pass_context
def command(ctx: click.Context, key: str, token: int, delay: int | None) -> None:
    """Give the entry under KEY back, which was leased with TOKEN."""
    with open_client(ctx) as client:
        client.release(argument_bytes(key), token, delay_us=delay)
