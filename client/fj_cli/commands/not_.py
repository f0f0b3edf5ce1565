"""``fj-cli not``: flip a boolean (a flag)."""

from __future__ import annotations

import click

from fj_cli.output import put_bytes, wants_json, write_json, write_line
from fj_cli.shared_options import NAME, b64_option, json_option, open_client, server_option


@click.command("not")
@click.argument("key", type=NAME)
@b64_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, key: bytes, as_json: bool | None) -> None:
    """Flip the boolean under KEY, and print what it is now."""
    with open_client(ctx) as client:
        value = client.flip(key).decoded()
    if wants_json(as_json):
        fields: dict[str, object] = {}
        put_bytes(fields, "key", key)
        write_json(fields | {"value": value})
    else:
        write_line("true" if value else "false")
