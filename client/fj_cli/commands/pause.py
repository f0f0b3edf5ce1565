"""``fj-cli pause``: have nothing of a domain handed out for a while."""

from __future__ import annotations

import click

from fj_cli.options import DURATION, open_client, server_option
from fj_cli.output import argument_bytes


@click.command("pause")
@click.argument("domain")
@click.argument("duration", type=DURATION)
@server_option
@click.pass_context
def command(ctx: click.Context, domain: str, duration: int) -> None:
    """Have nothing of DOMAIN handed out for DURATION; 0 is 'fj-cli resume'.

    What is being worked on can be completed. The pause outlives a restart of the daemon.
    """
    with open_client(ctx) as client:
        client.pause(argument_bytes(domain), duration)
