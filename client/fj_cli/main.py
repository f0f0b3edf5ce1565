"""``fj-cli``: runs the command line; an error becomes one sentence and an exit code."""

from __future__ import annotations

import sys

import click

from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    ConfigError,
    FastjournalError,
    LogFailedError,
    ProtocolError,
    RefusedError,
    SpoolFailedError,
)
from fj_cli.cli import cli, drop_output
from fj_cli.options import CANNOT_CONNECT, DONE, IO_FAILED, REFUSED, USAGE

_INTERRUPTED = 130

_EXIT_CODES: tuple[tuple[type[FastjournalError], int], ...] = (
    (BadRequestError, USAGE),
    (ConfigError, USAGE),
    (CannotConnectError, CANNOT_CONNECT),
    (ProtocolError, CANNOT_CONNECT),
    (LogFailedError, IO_FAILED),
    (SpoolFailedError, IO_FAILED),
)


def main() -> None:
    """Run ``fj-cli`` with the arguments of the process, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run ``fj-cli`` with these arguments; return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="fj-cli", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return _INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return DONE
    except FastjournalError as error:
        text = f"{error.code}: {error}" if isinstance(error, RefusedError) else str(error)
        click.echo(f"fj-cli: {text}", err=True)
        return exit_code_of(error)
    except OSError as error:
        click.echo(f"fj-cli: {error}", err=True)
        return IO_FAILED
    return code if isinstance(code, int) else DONE


def exit_code_of(error: FastjournalError) -> int:
    """Return the exit code that an error ends the program with."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), REFUSED)
