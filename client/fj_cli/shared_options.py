"""Options, parameter types and completion that several subcommands share; the daemon they name."""

from __future__ import annotations

import base64
import math
import os
import shlex
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fastjournal.errors import BadRequestError, FastjournalError
from fastjournal.keys import typed_domain
from fastjournal.limits import PRIORITY_DEFAULT, PRIORITY_MAX
from fastjournal.options import ENVIRONMENT, HELP, SERVER_DEFAULT, flag
from fastjournal.time_texts import parse_duration, parse_instant
from fastjournal.times import check_instant, to_datetime
from fj_cli.text import Microseconds

if TYPE_CHECKING:
    from fastjournal.client import SyncClient
    from fastjournal.client.core.client_credentials import Credentials
    from fastjournal.client.core.settings import Settings

    BytesParamType = click.ParamType[bytes]
    IntParamType = click.ParamType[int]
    AnyParamType = click.ParamType[Any]
else:
    # generic only since click 8.4
    AnyParamType = BytesParamType = IntParamType = click.ParamType

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_KEY = "fj_cli."
_B64 = _KEY + "b64"
DONE, REFUSED, USAGE, CANNOT_CONNECT, IO_FAILED, NOTHING_TO_DO = 0, 1, 2, 69, 74, 75
"""Exit codes."""


class ParsedType(AnyParamType):
    """A word that a function reads.

    Args:
        name: What a usage calls it.
        parse: Reads it, and raises BadRequestError where it cannot be read.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what was read."""
        if not isinstance(value, str):
            return value  # of a default, or by the program itself
        try:
            return self._parse(value)
        except BadRequestError as error:
            self.fail(str(error), param, ctx)


def to_microseconds(text: str) -> Microseconds:
    """Return a duration as people write it."""
    return Microseconds(parse_duration(text), text.strip())


class InstantType(IntParamType):
    """An instant as people write it; its value is in microseconds since the Unix epoch."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the microseconds.

        Raises:
            BadRequestError: No such instant can be meant.
        """
        from fastjournal.clock import SystemClock  # noqa: PLC0415 - the edge to the clock

        if isinstance(value, int):
            return value
        try:
            us = parse_instant(value, SystemClock().now_us())
        except BadRequestError as error:
            self.fail(str(error), param, ctx)
        return check_instant(value if param is None else f"{param.opts[0]} {value}", us)


class ExpiryType(InstantType):
    """An instant, or ``never``."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return its microseconds since the epoch; ``never``: infinity, as the clients take it."""
        return math.inf if value == "never" else super().convert(value, param, ctx)


def to_expiry(us: float | None) -> float | datetime | None:
    """Return the value of ``EXPIRY`` as the clients take it."""
    return us if us is None or us == math.inf else to_datetime(int(us))


class NameType(BytesParamType):
    """A key, URI or domain: the bytes of the argument, decoded with ``--b64``."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Return the bytes."""
        if isinstance(value, bytes):
            return value
        if ctx is None or not ctx.meta.get(_B64):
            return os.fsencode(value)
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            self.fail(f"{value!r} is no base64", param, ctx)


class DomainType(NameType):
    """A domain: as it is, or that of a host with a port as people write it."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Return the bytes."""
        data = super().convert(value, param, ctx)
        is_coded = isinstance(value, bytes) or (ctx is not None and ctx.meta.get(_B64))
        return data if is_coded else typed_domain(data)


DURATION = ParsedType("duration", to_microseconds)
"""A duration as people write it; its value is in microseconds."""
INSTANT = InstantType()
EXPIRY = ExpiryType()
NAME = NameType()
DOMAIN = DomainType()


LEASE = "5m"
"""Lease of every command that leases without an option for its length: a look must not hide a job
for a day, which is the daemon's default."""

lease_option = click.option(
    "--lease", type=DURATION, default=LEASE, help="Length of the lease; with --exec at least 1s."
)


plain_option = click.option(
    "--plain",
    is_flag=True,
    help="Take a new key that no worker gets: one like a journal key, or due after 9999.",
)


def check_empty(ctx: click.Context, value: str | None, empty: bool, also: str = "") -> None:
    """Refuse work without a value, unless ``--empty`` says so.

    Args:
        ctx: Context of the subcommand.
        value: Argument; None: there is none.
        empty: Whether the option was given.
        also: End of the sentence.
    """
    if value is not None and empty:
        raise click.UsageError("--empty is for an entry without VALUE: leave out one of them", ctx)
    if value is None and not empty:
        raise click.UsageError(f"give VALUE, or --empty if there is none{also}", ctx)


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_KEY + str(param.name)] = value


def server_option(command: Decorated) -> Decorated:
    """Add the options for the address of the daemon, and the credentials."""
    for name in reversed(ENVIRONMENT):
        command = click.option(
            flag(name), metavar="FILE", expose_value=False, callback=_remember, help=HELP[name]
        )(command)
    return click.option(
        "--server",
        metavar="ADDRESS",
        expose_value=False,
        callback=_remember,
        help="The daemon: HOST:PORT, [::1]:PORT, tls://HOST:PORT or unix:PATH; several with commas."
        + SERVER_DEFAULT,
    )(command)


json_option = click.option(
    "--json/--table",
    "as_json",
    default=None,
    help="One JSON object a line, or a table.  [default: a table on a terminal, else JSON]",
)


def _remember_b64(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_B64] = value


b64_option = click.option(
    "--b64",
    is_flag=True,
    is_eager=True,  # known before the names are read
    expose_value=False,
    callback=_remember_b64,
    help="Keys, URIs and domains among these arguments are in base64.",
)


def on_daemon(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that asks the daemon and has JSON output; pass the context."""
    return b64_option(json_option(server_option(click.pass_context(command))))


def refuse_options(ctx: click.Context, argv: Sequence[str], behind: str, also: str = "") -> None:
    """Refuse a command to run that begins with an option, which was meant for fj-cli.

    Args:
        ctx: Context of the subcommand.
        argv: The command to run; not empty.
        behind: The word before it.
        also: End of the sentence.
    """
    if not argv[0].startswith("-"):
        return
    meant = ours_among(ctx, argv) or argv[:1]
    raise click.UsageError(
        f"{', '.join(meant)} behind {behind}: options of fj-cli stand before it, and all behind it"
        f" is the command to run{also}",
        ctx,
    )


def ours_among(ctx: click.Context, words: Sequence[str]) -> list[str]:
    """Return the words that look like options of this command."""
    ours = {name for parameter in ctx.command.params for name in parameter.opts}
    return [word for word in words if word.partition("=")[0] in ours]


def daemon_of(ctx: click.Context) -> tuple[str, Credentials]:
    """Return the address of the daemon, and the credentials, by options, variables and files.

    Raises:
        ConfigError: It is no address, or a file is wrong.
    """
    from fastjournal.client.core.client_credentials import credentials_of  # noqa: PLC0415 - only where needed

    settings = settings_of(ctx)
    return settings["server"], credentials_of(settings)


def settings_of(ctx: click.Context) -> Settings:
    """Return the settings of ``daemon_of``, by name: the address, and files for TLS and the token.

    Raises:
        ConfigError: The address, or the configuration file, is wrong.
    """
    from fastjournal.client.core.settings import NAMES, config_files, find_daemon  # noqa: PLC0415 - only where needed

    options = {name: ctx.meta.get(_KEY + name) for name in NAMES}
    return find_daemon(options, os.environ, config_files(os.environ))


def open_client(ctx: click.Context) -> SyncClient:
    """Return a client of that daemon, for a ``with`` block, which connects it.

    Raises:
        ConfigError: See ``daemon_of``.
    """
    from fastjournal.client import SyncClient  # noqa: PLC0415 - only where needed

    address, credentials = daemon_of(ctx)
    # One request and an answer, or an exit code that says what happened.
    return SyncClient(address, tls=credentials.tls, auth=credentials.auth, reconnect=None)


# --- shell completion of names that the daemon knows ---------------------------------------------

_NAMES_MAX = 100
"""Names that are offered: a shell shows no more at once in any useful way."""


def complete_domain(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return domains that begin with what was typed; none if no daemon answers.

    A name that is not text, or that a shell does not take as it is, is left out: a shell may put
    it on the line without quotes, and domains are names of strangers.
    """
    try:
        with open_client(ctx) as client:
            found = islice(client.domains(os.fsencode(begun), page=_NAMES_MAX), _NAMES_MAX)
            names = [domain.name for domain in found]
    except (FastjournalError, OSError):
        return []  # whoever presses Tab wants no sentence in the middle of the line
    shown = [name.decode("utf-8", "replace") for name in names]
    return [name for name in shown if shlex.quote(name) == name and name[:1] != "-"]


# --- parameters of several commands ---------------------------------------------------------------


def _only_one(ctx: click.Context, param: click.Parameter, value: tuple[bytes, ...]) -> bytes | None:
    if len(value) > 1:
        raise click.UsageError("give one queue: --queue and --domain are two names of it", ctx)
    return value[0] if value else None


def queue_option(text: str) -> Callable[[Decorated], Decorated]:
    """Return the option ``--queue``, with its other name, for one queue."""
    return click.option(
        *("--queue", "--domain", "domain"),
        type=DOMAIN,
        multiple=True,
        callback=_only_one,
        shell_complete=complete_domain,
        help=text,
    )


domain_argument = click.argument("domain", type=DOMAIN, shell_complete=complete_domain)
directory_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=str)
)
priority_option = click.option(
    "--priority",
    type=click.IntRange(0, PRIORITY_MAX),
    default=PRIORITY_DEFAULT,
    help="0 runs first.",
)
