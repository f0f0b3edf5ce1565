"""Options and parameter types that several subcommands share, and the connection they name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from fastjournal.errors import BadRequestError
from fj_cli.times import parse_duration, parse_instant

if TYPE_CHECKING:
    from fastjournal.client import SyncClient

    IntParamType = click.ParamType[int]
else:
    IntParamType = click.ParamType  # generic only since click 8.4

_SERVER_KEY = "fj_cli.server"
DONE, REFUSED, USAGE, CANNOT_CONNECT, IO_FAILED, NOTHING_TO_DO = 0, 1, 2, 69, 74, 75
"""Exit codes."""


class Duration(IntParamType):
    """A duration as people write it; its value is in microseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the microseconds."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(value)
        except BadRequestError as error:
            self.fail(str(error), param, ctx)


class Instant(IntParamType):
    """An instant as people write it; its value is in microseconds since the Unix epoch."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the microseconds."""
        from fastjournal.clock import SystemClock  # noqa: PLC0415 - the edge to the clock

        if isinstance(value, int):
            return value
        try:
            return parse_instant(value, SystemClock().now_us())
        except BadRequestError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()
INSTANT = Instant()


def _remember_server(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_SERVER_KEY] = value


server_option = click.option(
    "--server",
    metavar="ADDRESS",
    expose_value=False,
    callback=_remember_server,
    help="The daemon: HOST:PORT, [::1]:PORT or unix:PATH.  [default: FASTJOURNAL_SERVER, then"
    " 'server' in fj-cli.toml, then 127.0.0.1:9923]",
)

json_option = click.option(
    "--json/--table",
    "as_json",
    default=None,
    help="One JSON object a line, or a table.  [default: a table on a terminal, else JSON]",
)


def server_of(ctx: click.Context) -> str:
    """Return the address of the daemon that options, environment and configuration name.

    Raises:
        ConfigError: It is no address, or the configuration file is wrong.
    """
    from fj_cli.config import config_files, find_server  # noqa: PLC0415 - only where needed

    return find_server(ctx.meta.get(_SERVER_KEY), os.environ, config_files(os.environ))


def open_client(ctx: click.Context) -> SyncClient:
    """Return a client of that daemon, for a ``with`` block, which connects it.

    Raises:
        ConfigError: See ``server_of``.
    """
    from fastjournal.client import SyncClient  # noqa: PLC0415 - only where needed

    # One request and an answer, or an exit code that says what happened.
    return SyncClient(server_of(ctx), reconnect=None)
