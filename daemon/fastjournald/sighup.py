"""Configuration reload (SIGHUP): reads options and certificates again, and applies some of them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import trio

from fastjournal import program
from fastjournal.errors import ConfigError
from fastjournal.loglines import LogEvent, Sentence
from fastjournald.config.options import Config
from fastjournald.net.credentials import Security, load_security, risks
from fastjournald.process import raise_file_limit
from fastjournald.server import Server

LOG = logging.getLogger("fastjournald")

SERVING = "READY=1\nSTATUS=Serving requests"
"""State for the service manager, after the start and after a reload."""

SECURITY = ("tls_cert", "tls_key", "tls_client_ca", "auth_tokens")
"""Options whose files are read again. An option cannot be added or removed: the listeners were
opened by it."""

WAITS_SECONDS = 1.0
"""Time after which a reload that waits for a file reports that, and yields to a later one."""

READS_MAX = 4
"""Reads at a time, all but one of them of reloads that another one took the place of: each has a
thread until its file can be read."""

RELOADED = frozenset(
    (
        *SECURITY,
        "auth_timeout",
        "idle_timeout",
        "log_level",
        "max_connections",
        "min_free_bytes",
        "request_timeout",
        "send_timeout",
    )
)
"""Options that count at once. Everything else needs a restart."""


class Reloader:
    """Applies changed options to a running server.

    Args:
        server: The server; its ``config`` changes.
        given: Configuration at its start.
        load: Reads the options again; raises ConfigError.
    """

    def __init__(self, server: Server, given: Config, load: Callable[[], Config]) -> None:
        self._server = server
        self._given = given
        self._load = load
        self._wanted = trio.Event()
        self._reads = trio.CapacityLimiter(READS_MAX)
        """Threads of its own: what hangs here takes none of those that others need."""

    def request(self) -> None:
        """Reload soon; several requests at a time are one."""
        self._wanted.set()

    async def run(self) -> None:
        """Reload whenever it was requested."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            program.notify_reloading()
            status = SERVING
            try:
                found = await self._read_unless_replaced()
            except ConfigError as error:
                LOG.error(
                    LogEvent("reload-failed", error=Sentence(error), kept="the options before")
                )
                status += ", with the options before a reload that failed: see the log"
            else:
                if found is None:
                    LOG.warning(LogEvent("reload-replaced"))
                    continue
                self._apply(*found)
            program.notify(status)

    async def _read_unless_replaced(self) -> tuple[Config, Security] | None:
        """Read options and certificates; None: that took long, and another reload was requested.

        Raises:
            ConfigError: They are bad, or cannot be read.
        """
        found: tuple[Config, Security] | ConfigError | None = None
        async with trio.open_nursery() as nursery:

            async def wait_replaced() -> None:
                await trio.sleep(WAITS_SECONDS)
                LOG.warning(LogEvent("reload-waits", reason="a file cannot be read yet"))
                await self._wanted.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_replaced)
            # a file that is a pipe, or on a network that hangs, does not hold up the stop
            found = await trio.to_thread.run_sync(
                self._read, abandon_on_cancel=True, limiter=self._reads
            )
            nursery.cancel_scope.cancel()
        if isinstance(found, ConfigError):
            raise found
        return found

    def _read(self) -> tuple[Config, Security] | ConfigError:
        try:
            config = self._load()
            return config, load_security(config)
        except ConfigError as error:
            return error

    def _apply(self, config: Config, security: Security) -> None:
        given, running = self._given, self._server.runtime.config
        changed = [
            name
            for name in Config.__struct_fields__
            if getattr(config, name) != getattr(given, name)
        ]
        restart = [name for name in changed if name not in RELOADED]
        switched = [
            name for name in SECURITY if bool(getattr(config, name)) != bool(getattr(given, name))
        ]
        taken = {name for name in changed if name in RELOADED}
        if switched:
            restart += switched
            taken.difference_update(SECURITY)
        else:
            self._server.secure(security)
        for name in taken:
            setattr(given, name, getattr(config, name))
            setattr(running, name, getattr(config, name))
        if "max_connections" in taken:
            raise_file_limit(running)
        logging.getLogger().setLevel(running.log_level.upper())
        LOG.info(LogEvent("reloaded", changed=",".join(sorted(taken)) or "none"))
        if restart:
            LOG.warning(LogEvent("needs-restart", options=",".join(sorted(restart))))
        for risk in risks(running):
            LOG.warning(LogEvent("risk", reason=Sentence(risk)))


def remember(config: Config) -> Config:
    """Return the options as they were given: the daemon changes some of those that it runs with."""
    return msgspec.structs.replace(config)
