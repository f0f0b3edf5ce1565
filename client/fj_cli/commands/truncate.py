"""``fj-cli truncate``: resize a buffer or a string."""

from __future__ import annotations

import click

from fj_cli.shared_options import NAME, b64_option, open_client, server_option


@click.command("truncate")
@click.argument("key", type=NAME)
@click.argument("size", type=click.IntRange(0, 2**63 - 1))
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, size: int) -> None:
    """Cut the buffer or string under KEY to SIZE bytes, or fill it up with zero bytes."""
    with open_client(ctx) as client:
        client.truncate(key, size)
