"""``fj-cli resume``: end the pause of a domain."""

from __future__ import annotations

import click

from fj_cli.shared_options import NAME, b64_option, open_client, server_option
from fj_cli.shell_completion import complete_domain


@click.command("resume")
@click.argument("domain", type=NAME, shell_complete=complete_domain)
@b64_option
@server_option
@click.pass_context
def command(ctx: click.Context, domain: bytes) -> None:
    """End the pause of DOMAIN, if there is one."""
    with open_client(ctx) as client:
        client.resume(domain)
