"""``fj-cli link``: one more key for an entry."""

from __future__ import annotations

import click

from fj_cli.shared_options import NAME, b64_option, open_client, plain_option, server_option


@click.command("link")
@click.argument("key", type=NAME)
@click.argument("new_key", type=NAME)
@plain_option
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, new_key: bytes, plain: bool) -> None:
    """Add NEW_KEY as one more key of the entry under KEY. Deleting by any key deletes all."""
    with open_client(ctx) as client:
        client.link(key, new_key, plain=plain)
