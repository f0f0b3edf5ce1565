"""Statistics of the daemon, of domains, workers and entries, as STATS and DOMAINS give them.

Names that end in ``_us`` are integers of microseconds. The same names without it are aware
datetimes in UTC, made when they are read; one after the year 9999 is its end.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from fastjournal.keys import unique_of
from fastjournal.protocol.constants import ATTEMPTS_REACHED
from fastjournal.times import to_datetime_or_none


def unique_among(keys: list[str]) -> str | None:
    """Return the value of a job that is unique within its queue, by its keys, the primary first."""
    key = keys[0].encode()
    found = (unique_of(key, other.encode()) for other in keys[1:])
    return next((value.decode() for value in found if value is not None), None)


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
    oldest_waiting_us: int = 0
    """Microseconds since the oldest waiting entry was asked for, failed or not; 0: none waits."""
    paused_until_us: int = msgspec.field(default=0, name="paused_until")
    """Instant; 0: it is not paused."""
    daemon_paused_until_us: int = msgspec.field(default=0, name="daemon_paused_until")
    """End of the pause of all domains together; 0: there is none."""
    interval_us: int = 0
    """Least microseconds between two deliveries; 0: no limit."""
    jobs_max: int = 0
    """Most entries that are leased at once; 0: no limit."""
    lease_us: int = 0
    """Microseconds of a lease where the request names none."""
    attempts_max: int = 0
    """Failed attempts after which an entry is buried; 0: no limit."""
    deliveries: int = 0
    """Jobs that were delivered since the start of the daemon, as all that follow."""
    jobs_completed: int = 0
    """Jobs that their worker completed, or that NEXT popped."""
    attempts_failed: int = 0
    """Attempts that a worker ended with an error."""
    leases_lost: int = 0
    """Leases that ended by time."""
    jobs_buried: int = 0
    """Jobs that became dead letters."""
    waited_us: int = 0
    """Microseconds from due to delivery, in sum."""
    run_us: int = 0
    """Microseconds from delivery to completion, in sum."""
    next_waiting: int = 0
    """NEXTs that wait, and that work of this domain would serve."""
    workers_busy: int = 0
    """Workers that hold leases, and whose last NEXT asked for this domain; 0 in a list."""
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
    waits_for: list[str] = []
    """Domains for which these wait, at most 20; empty: any; with ``:`` at the end: all that begin
    so."""
    takes: list[str] = []
    """Domains that its last NEXT with work asked for, as ``waits_for``, while it has leases."""

    def serves(self, domain: str) -> bool:
        """Whether it works on this domain, waits for its work, or asked for it and is busy."""
        return domain == self.domain or any(
            domain.startswith(name[:-1]) if name[-1:] == ":" else name in {"", domain}
            for name in (*self.waits_for, *(self.takes if self.connected else ()))
        )


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
    oldest_waiting_us: int = 0
    """Microseconds since the oldest waiting entry was asked for, failed or not; 0: none waits."""
    domains: int = 0
    connections: int = 0
    subscriptions: int = 0
    """Queries that connections listen to."""
    paused_until_us: int = msgspec.field(default=0, name="paused_until")
    """Instant until which nothing of any domain is delivered; 0: not everything is paused."""
    log_bytes: int = 0
    log_live_bytes: int = 0
    """Bytes of the command log that are still needed."""
    log_segments: int = 0
    """Files of the command log."""
    uptime_us: int = 0
    native: int = 0
    """1 while the daemon's native leaves (functions in C) run."""
    read_only: int = 0
    """1 while the disk is nearly full and nothing new is taken."""
    clock_behind_us: int = 0
    """Microseconds by which the daemon's clock was set back; its time stops until that is over."""
    remote_epoch: int = 0
    """Epoch of the remote log of which the daemon is the primary; 0: it has none."""
    remote_lag_bytes: int = 0
    """Bytes of the command log that the object store has not."""
    remote_lag_us: int = 0
    """Microseconds since the oldest of them was written."""
    remote_checkpoint_age_us: int = 0
    """Microseconds since the newest checkpoint."""
    requests: int = 0
    """Since the start of the daemon, as all that follow."""
    set_requests: int = 0
    next_requests: int = 0
    delete_requests: int = 0
    leases_lost: int = 0
    deliveries: int = 0
    """Of jobs; as in ``DomainStats`` all but ``leases_lost``, which has those of plain entries."""
    jobs_completed: int = 0
    attempts_failed: int = 0
    jobs_buried: int = 0
    waited_us: int = 0
    run_us: int = 0
    syncs: int = 0
    """Syncs of the command log."""
    sync_us: int = 0
    """Microseconds that these took together."""
    workers: list[WorkerStats] = []
    """At most 100, if requested. Leases of the time before the start have no worker."""
    workers_cut: int = 0
    """1: there are more workers than ``workers`` has."""

    @property
    def paused_until(self) -> datetime | None:
        """Instant at which the pause of everything ends; None: there is none."""
        return to_datetime_or_none(self.paused_until_us)


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
    def unique(self) -> str | None:
        """Value that is unique within its queue; None: it has none."""
        return unique_among(self.keys)

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


class DeadLetter(EntryStats, frozen=True):
    """State of a buried entry of a domain."""

    key: bytes = b""
    """The primary key."""
    uri: bytes = b""
    """Empty: it has none."""

    @property
    def error(self) -> str:
        """What the last attempt failed with, or the reason it was buried with; empty: none."""
        if self.last_error and self.buried_reason in {None, "", ATTEMPTS_REACHED}:
            return self.last_error
        return self.buried_reason or ""


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
    daemon_paused_until_us: int = 0
    """End of the pause of everything; 0: there is none."""
    uri_leased_by: str | None = None
    """Key of another entry that is leased for its URI; empty: your token does not cover it."""
    uri_leased_since_us: int = 0
    """When that entry was last read or delivered."""
    uri_leased_until_us: int = 0
    superseded_by: str | None = None
    """Key of the newer entry that its URI leads to, while it is superseded; empty: as above."""
    took_uri_from: str | None = None
    """Key of a waiting job of another queue that gave way to it or to the entry that it replaced;
    empty: your token does not cover it. Known since the daemon's start, for the latest ones."""
    took_uri_us: int = 0
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
    domain_next_waiting: int | None = None
    """NEXTs that wait, and that work of its domain would serve; None: the daemon is older."""
    domain_workers_busy: int = 0
    """Workers that hold leases, and whose last NEXT asked for its domain."""
    uri_taken_by: str | None = None
    """State ``deleted``: the job of another queue to which it gave way, as ``took_uri_from``."""
    deleted_us: int = 0
    """State ``deleted``: when the daemon received that; ``timestamp`` is that of the deletion."""
    tombstone_until_us: int = 0
    """Until when a repeat of an older SET is recognised."""
