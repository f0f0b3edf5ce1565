"""Process of the daemon: limit of open files, ready file with its addresses, systemd watchdog."""

from __future__ import annotations

import logging
import os
import re
import resource
from pathlib import Path

import trio

from fastjournal import limits, program
from fastjournal.errors import ConfigError
from fastjournal.loglines import LogEvent
from fastjournald.config.options import Config

_ADDRESS = re.compile(rb"unix:.+|\S+:[0-9]+")
_READY_BYTES_MAX = 64 * 1024
"""More addresses than a daemon ever listens on."""

START_STEP_US_MAX = 300_000_000
"""Time until the next sign of progress of a start at most: the scan worker has two minutes to
answer, and after the last record the indexes are built."""

LOG = logging.getLogger("fastjournald")


def write_ready_file(path: str, addresses: list[str]) -> None:
    """Write one bound address a line; a program that waits for it sees all of them or no file.

    Raises:
        ConfigError: It cannot be written.
    """
    temporary = f"{path}.{os.getpid()}"
    try:
        # no wider than the log
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o640)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{address}\n" for address in addresses)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"--ready-file: cannot write: {error.strerror}", path=path) from error


def remove_ready_file(path: str) -> None:
    """Remove it, if it is there: a program that waits for it must not find an old one.

    Raises:
        ConfigError: It cannot be removed, or is something else than a ready file.
    """
    try:
        if os.path.lexists(path) and not _is_ready_file(path):
            raise ConfigError(
                "--ready-file: another file is there, which holds no addresses",
                path=path,
                hint="name another file, or remove this one",
            )
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--ready-file: cannot remove: {error.strerror}", path=path) from error


def _is_ready_file(path: str) -> bool:
    """Whether this is an empty file, or one that says where a daemon listens."""
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        data = file.read(_READY_BYTES_MAX + 1)
    return len(data) <= _READY_BYTES_MAX and all(map(_ADDRESS.fullmatch, data.splitlines()))


def raise_file_limit(config: Config) -> None:
    """Allow as many open files as connections need, or fewer connections.

    A log that cannot open its next segment ends the daemon: connections must not bring that about.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = limits.FILES_RESERVED + (limits.HANDSHAKES_MAX if config.tls_cert else 0)
    wanted = config.max_connections + reserved
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < wanted:
        config.max_connections = max(1, soft - reserved)
        LOG.warning(
            LogEvent(
                "fewer-connections",
                max_connections=config.max_connections,
                open_files=soft,
                hint="raise the limit of open files (LimitNOFILE)",
            )
        )


async def ping_watchdog(seconds: float) -> None:
    """Send ``WATCHDOG=1`` twice in the time that the service manager waits for one.

    A turn of the event loop that takes longer sends none, and the manager ends the daemon with
    SIGABRT. With PYTHONFAULTHANDLER=1, which the unit sets, its log then has the stack of each
    thread.
    """
    while True:
        program.notify("WATCHDOG=1", wait=False)
        await trio.sleep(seconds / 2)


def notify_watchdog(wanted_s: float | None, watchdog_s: float | None) -> None:
    """Send a ping, and change the time until the next one.

    Args:
        wanted_s: The time, in seconds.
        watchdog_s: Time of the unit; None: there is no watchdog.
    """
    if watchdog_s is not None and wanted_s is not None:
        program.notify(f"WATCHDOG_USEC={int(wanted_s * 1_000_000)}\nWATCHDOG=1")
