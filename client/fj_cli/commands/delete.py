"""``fj-cli delete``: delete an entry, or complete a job."""

from __future__ import annotations

import click

from fj_cli.options import open_client, server_option
from fj_cli.output import argument_bytes


@click.command("delete")
@click.argument("key")
@click.option("--token", type=click.IntRange(0), help="Only if this is its lease token.")
@click.option("--no-tombstone", is_flag=True, help="Leave no trace: older writes may come back.")
@server_option
@click.pass_context
def command(ctx: click.Context, key: str, token: int | None, no_tombstone: bool) -> None:
    """Delete the entry under KEY with all its keys; with --token: complete the job."""
    with open_client(ctx) as client:
        client.delete(argument_bytes(key), token=token, overwrite=no_tombstone)
