"""Command line of ``fj-forwarder``: options, the lock, exit codes.

Exit codes: 0 stopped or done, 64 bad usage, 74 I/O error or, with ``--once``, a slot that could
not be read, 75 another forwarder holds the spool.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, get_args

import click
import trio

from fastjournal.client.core.address import Servers, parse_servers
from fastjournal.client.core.client_credentials import credentials_of
from fastjournal.client.core.settings import Settings, config_files, find_daemon
from fastjournal.errors import BadRequestError, ConfigError, SpoolError, SpoolLockedError
from fastjournal.limits import IDENTIFIER_MAX, SLOT_SECONDS
from fastjournal.loglines import LogFormat, LogLevel, configure_log
from fastjournal.options import ENVIRONMENT as ACCESS_FILES
from fastjournal.options import SERVER_DEFAULT, access_options, version_option
from fastjournal.printable import safe_text
from fastjournal.program import drop_what_fails, prepare_stdio, stops_noted
from fastjournal.sockets import Tcp, parse_http_place
from fastjournal.spool.slots import (
    FILE_MODE,
    LOCK_NAME,
    group_id,
    leads_to,
    set_access,
    spool_failed,
    write_directory,
)
from fastjournal.stderr_queue import queue_stderr
from fj_forwarder.forwarder import IN_FLIGHT_MAX, Forwarder, ForwarderSettings

EXIT_USAGE: Final = 64
EXIT_IO: Final = 74
EXIT_LOCKED: Final = 75

LOCK_TRIES: Final = 20
LOCK_PAUSE_S: Final = 0.05
"""Patience with the lock: a status query holds it for a moment, a forwarder for its whole life."""


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Options of the command line, by the names of their parameters."""

    spool: str
    servers: Servers
    in_flight_max: int
    slot_seconds: int
    group: str | None
    http: str | None
    insecure: bool
    once: bool
    seed: int | None
    log_level: LogLevel
    log_format: LogFormat
    access: Settings
    """Files of the credentials, by their names."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the options that click has parsed; without a server, those of the settings.

        Raises:
            ConfigError: A variable or the client file is wrong.
        """
        own = {name: value for name, value in values.items() if name not in ACCESS_FILES}
        given = {name: values[name] for name in ACCESS_FILES}
        if own["servers"]:
            given["server"] = ",".join(own["servers"])
        access = find_daemon(given, os.environ, config_files(os.environ))
        own["servers"] = parse_servers(access["server"])
        return cls(**own, access=access)

    def settings(self) -> ForwarderSettings:
        """Return what the forwarder needs of them."""
        return ForwarderSettings(
            spool=self.spool,
            servers=self.servers,
            in_flight_max=self.in_flight_max,
            slot_seconds=self.slot_seconds,
            once=self.once,
            seed=self.seed,
            load_credentials=partial(credentials_of, self.access),
        )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--spool",
    required=True,
    type=click.Path(file_okay=False),
    help="Directory of the spool; created if it is not there.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="ADDRESS",
    help="HOST:PORT, tls://HOST:PORT or unix:PATH of a daemon; several with commas, or repeat it,"
    " for daemons to move on to." + SERVER_DEFAULT,
)
@access_options
@click.option(
    "--batch",
    "in_flight_max",
    default=IN_FLIGHT_MAX,
    show_default=True,
    type=click.IntRange(1, IDENTIFIER_MAX // 2),
    help="Requests sent and not answered, at most.",
)
@click.option(
    "--slot-seconds",
    default=SLOT_SECONDS,
    show_default=True,
    type=click.IntRange(1),
    help="Length of the writers' slots.",
)
@click.option(
    "--group",
    metavar="NAME",
    help="Group that shares the spool, where that is created: mode 2770, files 0660.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve /metrics for Prometheus there, on a loopback address.",
)
@click.option(
    "--insecure", is_flag=True, help="Allow an address of --http that other machines reach."
)
@version_option("fj-forwarder")
@click.option("--once", is_flag=True, help="Send what is there, then exit.")
@click.option("--seed", type=int, hidden=True, help="Seed of the jitter of pauses.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(get_args(LogLevel)),
    help="Least level of the lines on standard error.",
)
@click.option(
    "--log-format",
    default="text",
    show_default=True,
    type=click.Choice(get_args(LogFormat)),
    help="Form of these lines.",
)
def command(**values: Any) -> int:
    """Send the records of a spool to fastjournald and erase each one that is safe there.

    Stopped or killed at any moment and started again, it loses nothing and doubles nothing.
    """
    configure_log(values["log_level"], values["log_format"])
    try:
        options = CommandOptions.of(values)
        credentials_of(options.access)
        shared_by = group_id(options.group)
        place = (
            None
            if options.http is None
            else parse_http_place(options.http, loopback_only=not options.insecure)
        )
    except (BadRequestError, ConfigError) as wrong:
        click.echo(safe_text(f"fj-forwarder: {wrong}"), err=True)
        return EXIT_USAGE
    return _run(options.settings(), shared_by, place)


def _run(settings: ForwarderSettings, shared_by: int | None, place: Tcp | None) -> int:
    """Forward until that is over; return the exit code."""
    status = 0
    try:
        with stops_noted() as early_stops:
            is_done = False
            while not is_done:
                write_directory(settings.spool, shared_by)
                with _forwarder_lock(settings.spool) as holds_spool:
                    forwarder = Forwarder(settings, holds_spool, early_stops)
                    with _serving(place, forwarder):
                        is_done = trio.run(forwarder.run)
    except* ConfigError as errors:
        click.echo(safe_text(f"fj-forwarder: {_first(errors)}"), err=True)
        status = EXIT_USAGE
    except* SpoolError as errors:
        error = _first(errors)
        click.echo(safe_text(f"fj-forwarder: {error}"), err=True)
        status = EXIT_LOCKED if isinstance(error, SpoolLockedError) else EXIT_IO
    return status


def main() -> None:
    """Run the command and exit with its status."""
    prepare_stdio()
    queue_stderr()
    try:
        status = command.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = EXIT_USAGE
    except click.Abort:
        status = 0
    drop_what_fails()
    sys.exit(status)


def _serving(place: Tcp | None, forwarder: Forwarder) -> AbstractContextManager[object]:
    """Serve metrics while the forwarder works, if there is an address for them."""
    if place is None:
        return nullcontext()
    from fj_forwarder.http_metrics import serving_metrics  # noqa: PLC0415 - slow to load

    return serving_metrics(place, lambda: forwarder.reporter.latest)


@contextmanager
def _forwarder_lock(spool: str) -> Iterator[Callable[[], bool]]:
    """Hold forwarder.lock; it ends with the process, however that ends.

    Gives a function that says whether the directory still has it: it may be deleted.
    """
    path = os.path.join(spool, LOCK_NAME)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
            set_access(descriptor, spool)
        except FileExistsError:
            descriptor = os.open(path, flags)
    except OSError as error:
        raise spool_failed("open", path, error) from error
    try:
        _lock(descriptor, path)
        yield partial(leads_to, path, descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: str) -> None:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
        except OSError as error:
            raise spool_failed("lock", path, error) from error
        else:
            return
    raise SpoolLockedError(
        "another forwarder holds this spool",
        path=path,
        hint="stop it, or name another spool",
    )


def _first(group: BaseExceptionGroup[ConfigError | SpoolError]) -> BaseException:
    """Return the first error in a group of groups."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
