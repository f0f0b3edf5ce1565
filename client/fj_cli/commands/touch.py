"""``fj-cli touch``: move the expiry of an entry, or renew a lease."""

from __future__ import annotations

import click

from fastjournal.clock import SystemClock
from fj_cli.instants import show_instant
from fj_cli.output import (
    put_bytes,
    released_unless_written,
    wants_json,
    write_json,
    write_line,
)
from fj_cli.shared_options import (
    DURATION,
    NAME,
    b64_option,
    json_option,
    open_client,
    server_option,
)
from fj_cli.times import to_duration


@click.command("touch")
@click.argument("key", type=NAME)
@click.argument("duration", type=DURATION)
@click.option("--token", type=click.IntRange(0), help="Renew this lease; the new token is printed.")
@b64_option
@json_option
@server_option
@click.pass_context
def command(
    ctx: click.Context, key: bytes, duration: int, token: int | None, as_json: bool | None
) -> None:
    """Let the entry under KEY expire in DURATION; with --token, let its lease end then."""
    with open_client(ctx) as client:
        renewed = client.touch(key, token, ttl=to_duration(duration))
        if renewed is not None:
            with released_unless_written(client, [(key, renewed)]):
                _write(key, renewed, as_json)


def _write(key: bytes, renewed: int, as_json: bool | None) -> None:
    """Write the token of a renewed lease."""
    if wants_json(as_json):
        fields: dict[str, object] = {}
        put_bytes(fields, "key", key)
        write_json(fields | {"token": renewed, "worked_on_until_us": renewed})
    else:
        until = show_instant(renewed, SystemClock().now_us())
        write_line(f"leased until {until}, token {renewed}")
