"""Shared options of programs: the version, and for access to a daemon TLS and the access token.

Those of a client have the names of the arguments of ``load_credentials``
(``fastjournal.client.core.client_credentials``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import click

Command = TypeVar("Command", bound=Callable[..., Any])

ENVIRONMENT: Final = {
    "tls_ca": "FASTJOURNAL_TLS_CA",
    "tls_cert": "FASTJOURNAL_TLS_CERT",
    "tls_key": "FASTJOURNAL_TLS_KEY",
    "auth_file": "FASTJOURNAL_AUTH_FILE",
}
"""The variable used for an option that is not given."""

CLIENT_FILE: Final = "client.toml"
"""File with the settings of clients, in the directory ``fastjournal`` of user and machine."""

SERVER_DEFAULT: Final = (
    f"  [default: FASTJOURNAL_SERVER, then 'server' in {CLIENT_FILE}, then 127.0.0.1:9923]"
)
"""End of the help of --server: where the address comes from if it is not given."""

HELP: Final = {
    "tls_ca": "Speak TLS, and trust the authorities in this PEM file.",
    "tls_cert": "This client's own certificate, PEM, where the daemon asks for one.",
    "tls_key": "Its key, PEM.",
    "auth_file": "File that holds the token for AUTH, mode 0600.",
}


def version_option(program: str) -> Callable[[Command], Command]:
    """Add ``--version`` to a click command: version and commit of fastjournal, and Python."""
    import click  # noqa: PLC0415 - the client has the names above, and is installed without click

    def show(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
        if is_asked and not context.resilient_parsing:
            from fastjournal.build_info import build_info  # noqa: PLC0415 - slow to load

            click.echo(f"{program}, version {build_info()}", color=context.color)
            context.exit()

    return click.option(
        "--version",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help="Show the version and exit.",
    )


def flag(name: str) -> str:
    """Return the option of that name, as the command line has it."""
    return f"--{name.replace('_', '-')}"


def access_options(command: Command) -> Command:
    """Add these options to a click command, each with its environment variable."""
    import click  # noqa: PLC0415 - as above

    for name in reversed(ENVIRONMENT):
        command = click.option(
            flag(name),
            metavar="FILE",
            envvar=ENVIRONMENT[name],
            show_envvar=True,
            help=HELP[name],
        )(command)
    return command
