"""``fj-cli release``: release the lease of an entry."""

from __future__ import annotations

import click

from fj_cli.shared_options import DURATION, NAME, b64_option, open_client, server_option
from fj_cli.times import to_duration_or_none


@click.command("release")
@click.argument("key", type=NAME)
@click.argument("token", type=click.IntRange(0))
@click.option("--delay", type=DURATION, help="It is due again after that long.")
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, token: int, delay: int | None) -> None:
    """Release the lease TOKEN of the entry under KEY: it is due again."""
    with open_client(ctx) as client:
        client.release(key, token, delay=to_duration_or_none(delay))
