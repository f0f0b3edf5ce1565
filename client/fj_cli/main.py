"""``fj-cli``: runs the command line; an error becomes one sentence and an exit code."""

from __future__ import annotations

import io
import signal
import sys

import click

from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    ConfigError,
    ExtraMissingError,
    FastjournalError,
    LogFailedError,
    ProtocolError,
    RemoteLogError,
    SpoolFailedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from fastjournal.program import drop, drop_what_fails, prepare_stdio
from fj_cli.cli import cli
from fj_cli.output import bytes_field, note
from fj_cli.shared_options import CANNOT_CONNECT, DONE, IO_FAILED, REFUSED, USAGE
from fj_cli.text import json_text

_INTERRUPTED = 130

_EXIT_CODES: tuple[tuple[type[FastjournalError], int], ...] = (
    (BadRequestError, USAGE),
    (ConfigError, USAGE),
    (CannotConnectError, CANNOT_CONNECT),
    (ExtraMissingError, CANNOT_CONNECT),
    (ProtocolError, CANNOT_CONNECT),
    (LogFailedError, IO_FAILED),
    (SpoolFailedError, IO_FAILED),
    (StoreRefusedError, USAGE),
    (StoreUnavailableError, CANNOT_CONNECT),
    (RemoteLogError, IO_FAILED),
)


def main() -> None:
    """Run ``fj-cli`` with the arguments of the process, and exit."""
    prepare_stdio()
    # where a parent has it ignored, the exit codes of commands are lost
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if "--exec" in sys.argv:
        from fastjournal.stderr_queue import queue_stderr  # noqa: PLC0415 - for workers only

        queue_stderr()
    code = run(sys.argv[1:])
    drop_what_fails()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run ``fj-cli`` with these arguments; return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="fj-cli", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        if _in_json(arguments):
            _write_error(BadRequestError(error.format_message(), code="usage"), error.exit_code)
            return error.exit_code
        shown = io.StringIO()
        error.show(shown)
        for line in shown.getvalue().rstrip("\n").split("\n"):
            note(line)
        return error.exit_code
    except click.Abort as error:
        if isinstance(error.__cause__, EOFError):
            # click takes it for the end of what is typed; a cut .pyc file raises it, too
            note(f"fj-cli: a file that was read ended too early: {error.__cause__}")
            return IO_FAILED
        return _INTERRUPTED
    except BrokenPipeError:
        drop(sys.stdout)
        return DONE
    except FastjournalError as error:
        from fj_cli.advice import advise  # noqa: PLC0415 - loads parts of the client

        advise(error)
        failure, code = error, exit_code_of(error)
    except OSError as error:
        failure, code = FastjournalError(str(error), code="io-failed"), IO_FAILED
    else:
        return code if isinstance(code, int) else DONE
    if _in_json(arguments):
        _write_error(failure, code)
    else:
        note(f"fj-cli: {failure}")
    return code


def exit_code_of(error: FastjournalError) -> int:
    """Return the exit code that an error ends the program with."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), REFUSED)


def _in_json(arguments: list[str]) -> bool:
    """Whether JSON is asked for in words; a command that is to be run has its own options."""
    if arguments[:1] == ["lock"]:
        return False  # it writes none
    ours = arguments[: arguments.index("--exec")] if "--exec" in arguments else arguments
    return "--json" in ours


def _write_error(error: FastjournalError, exit_code: int) -> None:
    """Write an error as a JSON object on standard error."""
    fields: dict[str, object] = {"error": error.code, "message": error.message, "hint": error.hint}
    if error.key is not None:
        fields |= bytes_field("key", error.key)
    if error.address is not None:
        fields["address"] = error.address
    note(json_text(fields | {"exit_code": exit_code}, ascii_only=True))
