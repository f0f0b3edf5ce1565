"""``fj-cli token``: tokens for AUTH, made where they are used."""

from __future__ import annotations

import os

import click

from fastjournal.errors import ConfigError
from fj_cli.examples import with_examples
from fj_cli.output import write_line


@click.group("token")
def command() -> None:
    """Make tokens for AUTH, without a daemon."""


@command.command("new", epilog=with_examples("token new", None))
@click.argument("file", type=click.Path(dir_okay=False))
def new(file: str) -> None:
    """Write a new token to FILE, mode 0600.

    Print the line for the daemon's file of tokens. The token itself is shown nowhere: --auth-file
    FILE uses it, and the daemon keeps its hash.
    """
    import hashlib
    import secrets

    token = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ConfigError("exists: remove it first, or name another file", path=file) from error
    with open(descriptor, "w", encoding="ascii") as out:
        out.write(f"{token}\n")
    write_line(f'token_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"')
