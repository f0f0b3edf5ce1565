"""``fj-cli snapshot``: have the daemon take a snapshot."""

from __future__ import annotations

import click

from fastjournal.limits import PAIRS_MAX
from fj_cli.output import wants_json, write_json, write_line
from fj_cli.shared_options import json_option, open_client, server_option


@click.command("snapshot")
@click.option(
    "--keep",
    type=click.IntRange(1, PAIRS_MAX),
    metavar="N",
    help="Remove all but the newest N, this one among them.  [default: remove none]",
)
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, keep: int | None, as_json: bool | None) -> None:
    """Have the daemon take a snapshot of its log; prints the path on the daemon's machine."""
    with open_client(ctx) as client:
        path = client.snapshot(keep=keep)
    if wants_json(as_json):
        write_json({"path": path})
    else:
        write_line(path)
