"""Reporting of a forwarder: ``status.json`` each second, and the last error of its log."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from fastjournal.errors import SpoolFailedError
from fastjournal.printable import safe_text
from fastjournal.spool.dead import DeadDirectory
from fastjournal.spool.forwarder_status import (
    NAMES_SHOWN,
    Delayed,
    ForwarderStatus,
    Suspect,
    write_forwarder_status,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fj_forwarder.delivery import Delivery
    from fj_forwarder.sending.delivery_engine import DeliveryEngine

log = logging.getLogger("fj_forwarder")

REPORT_S: Final = 1.0
"""Time between two status files."""

_RATE_S: Final = 10.0
_ERROR_CHARS_MAX: Final = 500
_COUNT_US_PER_NAME: Final = 20
"""The pieces in dead/ are counted no sooner again than this, for each of them."""


class LastError(logging.Handler):
    """Log handler that keeps the last warning or error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text: str | None = None
        self.at_us: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.text = safe_text(record.getMessage())[:_ERROR_CHARS_MAX]
        self.at_us = int(record.created * 1_000_000)


class Connection:
    """Connection to the daemon, for the status."""

    def __init__(self, servers: Sequence[object]) -> None:
        self.servers = [str(server) for server in servers]
        self.server: str | None = None
        self.since_us: int | None = None

    def opened(self, server: object) -> None:
        """A connection was made."""
        self.server, self.since_us = str(server), _wall_us()

    def closed(self) -> None:
        """It has ended."""
        self.server = self.since_us = None


class Reporter:
    """Reporter of the status of a forwarder.

    Args:
        spool: The directory.
        delivery: Its counts.
        engine: Its requests in flight.
        connection: Its connection.
    """

    def __init__(
        self, spool: str, delivery: Delivery, engine: DeliveryEngine, connection: Connection
    ) -> None:
        self._spool = spool
        self._delivery = delivery
        self._engine = engine
        self._connection = connection
        self._dead = _DeadCount(spool)
        self._last_error = LastError()
        self._started_us = _wall_us()
        self._rates: deque[tuple[float, int]] = deque()
        self._failure = ""
        self.latest: ForwarderStatus | None = None
        """The last status, for the metrics."""

    async def run(self) -> None:
        """Write the status each second until cancelled, and once more then."""
        log.addHandler(self._last_error)
        try:
            while True:
                self.write()
                await trio.sleep(REPORT_S)
        finally:
            log.removeHandler(self._last_error)
            self.write()

    def write(self) -> None:
        """Write the status; a failure is logged once, for each reason."""
        self.latest = self._status()
        try:
            write_forwarder_status(self._spool, self.latest)
        except SpoolFailedError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                log.warning("%s", error)
        else:
            self._failure = ""

    def _status(self) -> ForwarderStatus:
        delivery, last_error = self._delivery, self._last_error
        store, suspects = delivery.store, delivery.suspects
        backlog, delayed, listing = store.backlog(), len(store.retries), store.listing
        left_out = [os.path.basename(error.path or "") for error in store.left_out.failures()]
        return ForwarderStatus(
            pid=os.getpid(),
            started_us=self._started_us,
            written_us=_wall_us(),
            servers=self._connection.servers,
            server=self._connection.server,
            connected_us=self._connection.since_us,
            done=delivery.done,
            done_per_second=self._rate(),
            replaced=delivery.replaced,
            replaced_elsewhere=delivery.replaced_elsewhere,
            pending=backlog.outstanding + delayed,
            unread_bytes=backlog.unread_bytes,
            slots=backlog.slots + len(left_out),
            oldest_slot=backlog.oldest_slot,
            oldest_pending_us=backlog.oldest_pending_us,
            in_flight=self._engine.in_flight,
            delayed=max(0, delayed - suspects),
            delayed_records=[
                Delayed(retry.slot.name, retry.start, retry.code, retry.tries, retry.due_us)
                for retry in store.retries.ordinary.smallest(NAMES_SHOWN)
            ],
            suspect=suspects,
            suspects=[
                Suspect(retry.slot.name, retry.start, retry.tries)
                for retry in store.retries.suspects.smallest(NAMES_SHOWN)
            ],
            dead=self._dead.count(),
            buried=delivery.dead_letters.count,
            ignored=listing.ignored,
            ignored_names=[safe_text(name) for name in listing.ignored_names[:NAMES_SHOWN]],
            left_out=len(left_out),
            left_out_names=left_out[:NAMES_SHOWN],
            last_error=last_error.text,
            last_error_us=last_error.at_us,
        )

    def _rate(self) -> float:
        now_s, done = time.monotonic(), self._delivery.done
        self._rates.append((now_s, done))
        while len(self._rates) > 2 and self._rates[1][0] <= now_s - _RATE_S:
            self._rates.popleft()
        before_s, before = self._rates[0]
        return round((done - before) / max(now_s - before_s, REPORT_S), 1)


class _DeadCount:
    """Number of the pieces in dead/, which others retry and drop: counted when it has changed."""

    def __init__(self, spool: str) -> None:
        self._directory = DeadDirectory(spool)
        self._modified_ns = -1
        self._from_s = 0.0
        self._known = 0

    def count(self) -> int:
        """Return it; the last one where the directory cannot be read."""
        now_s = time.monotonic()
        if now_s < self._from_s:
            return self._known
        try:
            modified_ns = os.stat(self._directory.path, follow_symlinks=False).st_mtime_ns
            if modified_ns != self._modified_ns:
                self._known = self._directory.count()
                self._modified_ns = modified_ns
        except FileNotFoundError:
            self._known, self._modified_ns = 0, -1
        except (OSError, SpoolFailedError) as error:
            log.debug("cannot count dead/: %s", error)
        self._from_s = now_s + self._known * _COUNT_US_PER_NAME / 1e6
        return self._known


def _wall_us() -> int:
    return time.time_ns() // 1000
