"""Command line of ``fj-worker``: options, the application, reload, exit codes.

Exit codes: 0 stopped, or nothing is due with ``--burst``; 1 the daemon cannot be used; 2 bad usage,
also of a module that cannot be imported.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from argparse import SUPPRESS, Action, ArgumentParser
from typing import Final, get_args

import anyio
import msgspec

from fastjournal.client.core.settings import find_daemon
from fastjournal.errors import BadRequestError, ConfigError, FastjournalError
from fastjournal.loglines import LogEvent, LogFormat, LogLevel, configure_log
from fastjournal.printable import safe_text
from fastjournal.program import drop_what_fails, prepare_stdio, stops_noted
from fastjournal.tasks.app import Tasks
from fastjournal.tasks.worker import EXIT_USAGE, Supervisor, Worker, WorkerOptions, watch_files

EXIT_FAILED: Final = 1

_log = logging.getLogger("fastjournal.tasks")


_OPTIONS: Final = (
    ("queues", "NAMES", "Queues to work on, with commas between them. They take turns."),
    ("concurrency", "N", "Tasks that run at once, in each process."),
    ("processes", "N", "Processes, for tasks that hold the processor."),
    (
        "server",
        "ADDRESS",
        "The daemon: HOST:PORT, tls://HOST:PORT or unix:PATH; several with commas.",
    ),
    ("grace", "SECONDS", "How long a stop waits for the tasks that run."),
    ("lease", "SECONDS", "So late are the jobs of a killed worker begun again."),
    ("log-level", "LEVEL", f"Least level of log lines: {', '.join(get_args(LogLevel))}."),
    ("log-format", "FORM", f"Form of log lines: {', '.join(get_args(LogFormat))}."),
)
"""Options with a value: name, its value, and help."""

_DEFAULTS: Final = {
    "queues": "those of the tasks",
    "server": "that of the Tasks, then FASTJOURNAL_SERVER, then that of client.toml",
}


class _Version(Action):
    """Shows the version of fastjournal, and of Python."""

    def __call__(self, *_: object) -> None:
        from fastjournal.build_info import build_info  # noqa: PLC0415 - slow to load

        print(f"fj-worker, version {build_info()}")
        raise SystemExit(0)


def parser() -> ArgumentParser:
    """Return the command line."""
    command = ArgumentParser(
        prog="fj-worker",
        description="Work off the jobs of an application's tasks, until SIGTERM or SIGINT. Then it"
        " takes no more, and finishes those that run. After the grace, or at a second signal, the"
        " rest is released, and does not count as failed.",
        epilog="Exit codes: 0 stopped, 1 the daemon cannot be used, 2 bad usage.",
        allow_abbrev=False,
    )
    add, defaults = command.add_argument, WorkerOptions()
    add("app", metavar="MODULE:APP", help="The Tasks to serve, as in shop.mails:app.")
    for name, value, text in _OPTIONS:
        field = name.replace("-", "_")
        default = getattr(defaults, field)
        shown = f"{text}  [default: {_DEFAULTS.get(field, default)}]"
        add(f"--{name}", metavar=value, default=default, help=shown)
    add("--burst", "--once", action="store_true", help="End when nothing is due.")
    add("--reload", action="store_true", help="Start again when a module changes: for development.")
    add("--version", action=_Version, nargs=0, default=SUPPRESS, help="Show the version and exit.")
    add("--supervised", action="store_true", help=SUPPRESS)
    return command


def load_app(place: str) -> Tasks:
    """Import the module of ``MODULE:APP``; return the application.

    Raises:
        ConfigError: There is no such module; the sentence says what to do.
        BadRequestError: The module has no such application.
        Exception: What the module itself raises when it is imported.
    """
    name, _, attribute = place.partition(":")
    if not (name and attribute):
        raise ConfigError(f"{place!r} names no application", hint="write MODULE:APP, as shop:app")
    if name.endswith(".py") and os.path.isfile(name):
        module_name = os.path.relpath(name).removesuffix(".py").replace(os.sep, ".")
        raise ConfigError(
            f"{name!r} is a file", hint=f"write its module: {module_name}:{attribute}"
        )
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        hint = f"start fj-worker where it is, now {os.getcwd()}, or set PYTHONPATH"
        raise ConfigError(f"there is no module {error.name!r}", hint=hint) from error
    app = getattr(module, attribute, None)
    if not isinstance(app, Tasks):
        others = [other for other, value in vars(module).items() if isinstance(value, Tasks)]
        there = f"it has {', '.join(others)}" if others else f"write {attribute} = Tasks() there"
        raise BadRequestError(f"{attribute!r} of module {name} is no Tasks", hint=there)
    return app


def _start_again() -> None:
    """Replace this process by a new one of the same command."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _load(options: WorkerOptions) -> Tasks:
    """Return the application; with --reload wait until its module can be imported."""
    try:
        return load_app(options.app)
    except ConfigError:
        raise
    except Exception as error:
        is_told = isinstance(error, FastjournalError)
        if options.reload or not is_told:
            traceback.print_exc()
        if options.reload:
            wait_changed = watch_files(error)
            _log.error(LogEvent("import-failed", app=options.app, hint="waiting for a change"))
            anyio.run(wait_changed)
            _start_again()
        if is_told:
            raise
        name = options.app.partition(":")[0]
        raise ConfigError(f"module {name} cannot be imported: {error!r}") from error


def _work(options: WorkerOptions) -> int:
    """Work in this process; return the exit code."""
    if options.server is not None:
        os.environ["FASTJOURNAL_SERVER"] = options.server  # for clients of the module, too
    app = _load(options)
    if options.server is not None:
        app.server = None
    worker = Worker(app, options)
    with stops_noted() as early_stops:
        try:
            anyio.run(worker.run, early_stops)
        finally:
            for on_stop in app.chain["on_stop"]:
                on_stop()
        if worker.is_changed:
            _start_again()
        if worker.threads_left:  # Python waits for threads at its end, and these do not end
            _log.warning(LogEvent("threads-left", running=len(worker.threads_left)))
            drop_what_fails()
            os._exit(0)
    return 0


def run(options: WorkerOptions) -> int:
    """Work as the options say; return the exit code."""
    status = EXIT_FAILED
    try:
        if options.server is not None:
            find_daemon({"server": options.server}, {}, ())  # the error names the option
        if options.processes == 1 or options.supervised:
            return _work(options)
        command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--supervised"]
        with stops_noted() as early_stops:
            return anyio.run(Supervisor(command, options.processes).run, early_stops)
    except* (ConfigError, BadRequestError) as errors:
        status = EXIT_USAGE
        _tell(errors)
    except* FastjournalError as errors:
        _tell(errors)
    return status


def _tell(error: BaseException) -> None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FastjournalError) and error.code in ("auth-required", "auth-failed"):
        error.hint = "set FASTJOURNAL_AUTH_FILE, or auth_file of client.toml, to a token's file"
    print(safe_text(f"fj-worker: {error}"), file=sys.stderr)


def main() -> None:
    """Run the command and exit with its status."""
    prepare_stdio()
    sys.path.insert(0, os.getcwd())
    command = parser()
    try:
        options = msgspec.convert(vars(command.parse_args()), WorkerOptions, strict=False)
    except msgspec.ValidationError as error:
        command.error(str(error).replace("`$.", "`--").replace("_", "-"))
    configure_log(options.log_level, options.log_format)
    status = run(options)
    drop_what_fails()
    sys.exit(status)


if __name__ == "__main__":
    main()
