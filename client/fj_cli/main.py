"""``fj-cli``: runs the command line; an error becomes one sentence and an exit code."""

from __future__ import annotations

import io
import sys

import click

from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    ConfigError,
    FastjournalError,
    LogFailedError,
    ProtocolError,
    SpoolFailedError,
)
from fastjournal.stdio import drop, drop_what_fails, prepare_stdio
from fj_cli.cli import cli
from fj_cli.options import CANNOT_CONNECT, DONE, IO_FAILED, REFUSED, USAGE
from fj_cli.output import note

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
    prepare_stdio()
    code = run(sys.argv[1:])
    drop_what_fails()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run ``fj-cli`` with these arguments; return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="fj-cli", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        for line in shown.getvalue().rstrip("\n").split("\n"):
            note(line)
        return error.exit_code
    except click.Abort:
        return _INTERRUPTED
    except BrokenPipeError:
        drop(sys.stdout)
        return DONE
    except FastjournalError as error:
        note(f"fj-cli: {error}")
        return exit_code_of(error)
    except OSError as error:
        note(f"fj-cli: {error}")
        return IO_FAILED
    return code if isinstance(code, int) else DONE


def exit_code_of(error: FastjournalError) -> int:
    """Return the exit code that an error ends the program with."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), REFUSED)
