"""``fj-cli rename``: give an entry another primary key."""

from __future__ import annotations

import click

from fj_cli.shared_options import NAME, b64_option, open_client, plain_option, server_option


@click.command("rename")
@click.argument("key", type=NAME)
@click.argument("new_key", type=NAME)
@click.option("--overwrite", is_flag=True, help="Replace what has NEW_KEY as its primary key.")
@plain_option
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, new_key: bytes, overwrite: bool, plain: bool) -> None:
    """Change the primary key of an entry from KEY to NEW_KEY; value and all else stay.

    A journal key makes it work, any other key makes it plain data. KEY keeps a tombstone.
    """
    with open_client(ctx) as client:
        client.rename(key, new_key, overwrite=overwrite, plain=plain)
