"""``fj-cli delete``: delete an entry, or complete a job."""

from __future__ import annotations

import click

from fj_cli.shared_options import NAME, b64_option, open_client, server_option


@click.command("delete")
@click.argument("key", type=NAME)
@click.option("--token", type=click.IntRange(0), help="Only if this is its lease token.")
@click.option("--no-tombstone", is_flag=True, help="Leave no trace: older writes may come back.")
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, token: int | None, no_tombstone: bool) -> None:
    """Delete the entry under KEY with all its keys; with --token: complete the job."""
    with open_client(ctx) as client:
        client.delete(key, token=token, overwrite=no_tombstone)
