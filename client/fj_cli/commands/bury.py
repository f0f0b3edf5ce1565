"""``fj-cli bury``: make an entry a dead letter."""

from __future__ import annotations

import shlex

import click

from fj_cli.shared_options import NAME, b64_option, open_client, server_option


@click.command("bury")
@click.argument("words", nargs=-1, required=True, metavar="KEY")
@click.option("--token", type=click.IntRange(0), help="Only if this is its lease token.")
@click.option("--reason", default="", metavar="TEXT", help="Why; 'fj-cli stats KEY' shows it.")
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], token: int | None, reason: str) -> None:
    """Bury the entry under KEY: NEXT does not deliver it until it is kicked.

    Without --token this ends a lease, and whoever works on it cannot complete it any more.
    """
    if len(words) > 1:
        raise click.UsageError(f"too many arguments: write --reason {shlex.quote(words[1])}", ctx)
    key = NAME.convert(words[0], None, ctx)
    with open_client(ctx) as client:
        client.bury(key, token, reason=reason)
