"""``fj-cli watch``: print changes as they happen."""

from __future__ import annotations

import os
from typing import Any

import click

from fj_cli.output import wants_json
from fj_cli.shared_options import NAME, b64_option, daemon_of, json_option, server_option


@click.command("watch")
@click.argument("key", type=NAME, required=False)
@click.option("--prefix", type=NAME, metavar="TEXT", help="All keys that begin so.")
@click.option("--regex", metavar="RE", help="All keys in which this is found (RE2 syntax).")
@b64_option
@json_option
@server_option
@click.pass_context
def command(
    ctx: click.Context,
    key: bytes | None,
    prefix: bytes | None,
    regex: str | None,
    as_json: bool | None,
) -> None:
    """Print each change of KEY, or of all keys, until Ctrl-C or until nobody reads it.

    A line says when it came, whether the key was set or is gone, and the value. Changes that follow
    faster than they are printed are one line, with the last value. A line 'missed' says that some
    may be missing: the connection was lost, and made anew.
    """
    expression = None if regex is None else os.fsencode(regex)
    given = {"key": key, "prefix": prefix, "regex": expression}
    query: dict[str, Any] = {name: text for name, text in given.items() if text is not None}
    if len(query) > 1:
        raise click.UsageError("give one of KEY, --prefix and --regex", ctx)

    import trio

    from fastjournal.client import Client
    from fj_cli.watching import watch

    address, credentials = daemon_of(ctx)
    client = Client(address, tls=credentials.tls, auth=credentials.auth)
    in_json = wants_json(as_json)
    trio.run(lambda: watch(client, query or {"prefix": b""}, as_json=in_json))
