"""``fj-cli resume``: end the pause of a domain."""

from __future__ import annotations

import click

from fj_cli.options import open_client, server_option
from fj_cli.output import argument_bytes


@click.command("resume")
@click.argument("domain")
@server_option
@click.pass_context
def command(ctx: click.Context, domain: str) -> None:
    """End the pause of DOMAIN, if there is one."""
    with open_client(ctx) as client:
        client.resume(argument_bytes(domain))
