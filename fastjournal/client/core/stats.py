"""Statistics of the daemon, of domains, workers and entries, as STATS and DOMAINS give them.

Names that end in ``_us`` are integers of microseconds. The same names without it are aware
datetimes in UTC, made when they are read; one after the year 9999 is its end.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from fastjournal.times import to_datetime_or_none


class DomainStats(msgspec.Struct, frozen=True):
    """Counts of a domain."""

    entries: int = 0
    waiting: int = 0
    """Neither worked on nor buried: due or delayed."""
    due: int = 0
    """Ready: NEXT may deliver it now."""
    delayed: int = 0
    """May not be yet: its instant, or work on its URI, lies ahead, or it is locked."""
    worked_on: int = 0
    buried: int = 0
    oldest_due_us: int = 0
    """Microseconds for which the oldest due entry has been due; 0: none is."""
    paused_until_us: int = msgspec.field(default=0, name="paused_until")
    """Instant; 0: it is not paused."""
    interval_us: int = 0
    """Least microseconds between two deliveries; 0: no limit."""
    jobs_max: int = 0
    """Most entries that are leased at once; 0: no limit."""
    lease_us: int = 0
    """Microseconds of a lease where the request names none."""
    attempts_max: int = 0
    """Failed attempts after which an entry is buried; 0: no limit."""
    name: bytes = b""
    """In a list of domains; empty where one was asked for by its name."""

    @property
    def paused_until(self) -> datetime | None:
        """Instant at which the pause ends; None: it is not paused."""
        return to_datetime_or_none(self.paused_until_us)


class WorkerStats(msgspec.Struct, frozen=True):
    """Connection that works on entries, or waits for work."""

    name: str
    """Address, or process and user; with the name of its access token."""
    connected: int = 1
    """0: the connection has ended, and its leases go on."""
    worked_on: int = 0
    """Entries that it has leased."""
    since_us: int = 0
    """Begin of the first of these leases; 0: it has none, or one from before the start."""
    domain: str = ""
    """Domain of entries that it works on; there may be others."""
    waiting: int = 0
    """Its NEXTs that wait for work."""


class DaemonStats(msgspec.Struct, frozen=True):
    """Counts of the whole daemon."""

    entries: int = 0
    waiting: int = 0
    due: int = 0
    delayed: int = 0
    worked_on: int = 0
    buried: int = 0
    oldest_due_us: int = 0
    """Microseconds for which the oldest due entry has been due; 0: none is."""
    domains: int = 0
    connections: int = 0
    subscriptions: int = 0
    """Queries that connections listen to."""
    log_bytes: int = 0
    log_live_bytes: int = 0
    """Bytes of the command log that are still needed."""
    log_segments: int = 0
    """Files of the command log."""
    uptime_us: int = 0
    read_only: int = 0
    """1 while the disk is nearly full and nothing new is taken."""
    clock_behind_us: int = 0
    """Microseconds by which the daemon's clock was set back; its time stops until that is over."""
    requests: int = 0
    """Since the start of the daemon, as all that follow."""
    set_requests: int = 0
    next_requests: int = 0
    delete_requests: int = 0
    leases_lost: int = 0
    syncs: int = 0
    """Syncs of the command log."""
    sync_us: int = 0
    """Microseconds that these took together."""
    workers: list[WorkerStats] = []
    """At most 100, if requested. Leases of the time before the start have no worker."""
    workers_cut: int = 0
    """1: there are more workers than ``workers`` has."""


class EntryStats(msgspec.Struct, frozen=True):
    """State of an entry without its value."""

    keys: list[str]
    """The primary key, the URI if it has one, and links; what is not UTF-8 is escaped."""
    state: str
    """``plain``, ``ready``, ``delayed``, ``worked on`` or ``buried``."""
    persistent: bool = False
    priority: int = 0
    attempts: int = 0
    buried_reason: str | None = None
    last_error: str | None = None
    """Error of the last attempt that was released as failed; None: there was none."""
    superseded: bool = False
    """It is worked on, and its URI leads to a newer entry already."""
    timestamp_us: int = msgspec.field(default=0, name="timestamp")
    created_us: int = msgspec.field(default=0, name="created")
    not_before_us: int = msgspec.field(default=0, name="not_before")
    first_due_us: int = msgspec.field(default=0, name="first_due")
    """When the work was due first, before later writes of its URI put it off; 0: they did not."""
    expires_us: int = msgspec.field(default=0, name="expires")
    """0: never."""
    worked_on_until_us: int = msgspec.field(default=0, name="worked_on_until")
    """0: not leased; else the lease token."""
    lease_ends_us: int = msgspec.field(default=0, name="lease_ends")
    """End of the lease: the lease token, unless a step of the daemon's clock moved it; 0: none."""
    locked_until_us: int = msgspec.field(default=0, name="locked_until")
    """0: not locked."""
    value_bytes: int = 0
    job_id: str = ""
    """Job id of its record in the command log, in hexadecimal digits."""
    log_segment: int = 0
    log_offset: int = 0
    """Bytes from the start of that segment."""

    @property
    def timestamp(self) -> datetime | None:
        """Instant that the last write carries."""
        return to_datetime_or_none(self.timestamp_us)

    @property
    def created(self) -> datetime | None:
        """Instant at which it was created."""
        return to_datetime_or_none(self.created_us)

    @property
    def not_before(self) -> datetime | None:
        """Instant before which the work must not start; None: no journal key, or none."""
        return to_datetime_or_none(self.not_before_us)

    @property
    def first_due(self) -> datetime | None:
        """Instant at which the work was due first; None: later writes did not put it off."""
        return to_datetime_or_none(self.first_due_us)

    @property
    def expires(self) -> datetime | None:
        """Instant at which it vanishes; None: never."""
        return to_datetime_or_none(self.expires_us)

    @property
    def worked_on_until(self) -> datetime | None:
        """Instant at which the lease ends; None: not leased."""
        return to_datetime_or_none(self.worked_on_until_us)

    @property
    def locked_until(self) -> datetime | None:
        """Instant at which the lock ends; None: not locked."""
        return to_datetime_or_none(self.locked_until_us)


class EntryExplanation(EntryStats, frozen=True):
    """State of an entry, and the causes that delay its delivery; 0 for instants that are not set.

    Names that end in ``_us`` are microseconds: instants, except ``domain_interval_us`` and
    ``postpone_us_max``.
    """

    now_us: int = 0
    """The daemon's clock."""
    modified_us: int = 0
    accessed_us: int = 0
    """When it was last read or delivered."""
    worked_on_since_us: int = 0
    """Begin of its lease, before it was renewed; not known from before the daemon's start."""
    worked_on_by: str = ""
    """Name of the connection that leased or renewed it last, as in ``WorkerStats``."""
    worker_connected: int = 0
    """0: that connection has ended, or is not known."""
    locked_since_us: int = 0
    delayed_until_us: int = 0
    """When it becomes due, while its state is ``delayed``."""
    ready_before: int = 0
    """Due entries of its domain that are before it, while its state is ``ready``."""
    attempts_max: int = 0
    """Failed attempts after which it is buried; 0: no limit."""
    postpone_us_max: int = 0
    """How far newer writes of its URI may put it off; 0: no limit."""
    read_only: int = 0
    """1 while the disk is nearly full and the daemon delivers nothing."""
    uri_leased_by: str | None = None
    """Key of another entry that is leased for its URI; empty: your token does not cover it."""
    uri_leased_since_us: int = 0
    """When that entry was last read or delivered."""
    uri_leased_until_us: int = 0
    superseded_by: str | None = None
    """Key of the newer entry that its URI leads to, while it is superseded; empty: as above."""
    domain: str | None = None
    """None: it is a plain entry, which is never delivered."""
    domain_due: int = 0
    domain_worked_on: int = 0
    domain_paused_until_us: int = 0
    domain_delivered_us: int = 0
    """The last delivery of its domain that is known."""
    domain_interval_us: int = 0
    domain_waits_until_us: int = 0
    """End of the interval after that delivery, while it runs."""
    domain_jobs_max: int = 0
    domain_is_full: bool = False
    """As many entries of its domain are leased as the limit allows."""
    domain_held_until_us: int = 0
    """When its domain may be delivered again, if no lease ends before its time."""
    deleted_us: int = 0
    """State ``deleted``: when the daemon received that; ``timestamp`` is that of the deletion."""
    tombstone_until_us: int = 0
    """Until when a repeat of an older SET is recognised."""
