"""Replayed entry: a live job of the command log, as its records leave it. Times in microseconds.

And the begins of its durations that are later than the present.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fastjournal.cmdlog.format.envelope import Envelope
from fastjournal.cmdlog.format.packed_entry import Packed, pack_facts_and_record
from fastjournal.keys import parse_journal_key
from fastjournal.limits import PRIORITY_DEFAULT


class ColdFields(msgspec.Struct, gc=False):
    """Cold fields: those that few entries have; see ``Envelope`` for what is named as there."""

    links: list[bytes] = []
    expires: int = 0
    ttl: int = 0
    attempts: int = 0
    """Leases that ran out."""
    reason: bytes | None = None
    error: bytes | None = None
    first_due: int = 0
    due: int = 0
    superseded: int = 0
    """Timestamp of the SET that took its URI while it was worked on; 0: none."""
    taken: tuple[bytes, ...] = ()
    erases: bool = False
    lease_attempts_max: int = 0
    """Bound of its lease on failed attempts; 0: the lease has none."""
    amended: bool = False
    """Whether other records than its own changed it; start-attempts are counted by ``starts``."""
    cold_bytes: int = 0
    """Size of a value that was left on the disk; 0: it is here."""
    foreign: bool = False
    """A job of workq's own, without an envelope."""
    ttr_us: int = 0
    """Lease of a foreign job."""
    attempts_max: int = 0
    """Leases after which a foreign job has failed; 0: no limit."""
    fails_max: int = 0
    """Failures after which a foreign job has failed; 0: no limit."""
    priority_cut: bool = False
    """Whether the priority of a foreign job is beyond those of an entry."""
    lease_end: int = 0
    """When its lease ends, where a step of the clock moved that; 0: at its token."""


class _NoColdFields(ColdFields, frozen=True, gc=False):  # type: ignore[misc] # frozen
    """Null object: cold fields that can be read but not written to."""


NO_COLD_FIELDS: Final[ColdFields] = _NoColdFields()
"""Cold fields of all entries that have none."""


class ReplayedEntry(Packed, array_like=True, gc=False):
    """An entry in the state of the log, and the job that carries it.

    The priority is that of the key: ``facts`` has a guess until the daemon has loaded the entry. It
    takes 96 bytes; the entry of the daemon that replaces it takes 80.
    """

    value: bytes
    job_id: bytes
    changed: int = 0
    """When it was modified; 0: not since it was created."""
    token: int = 0
    """Lease token; 0: not worked on."""
    starts: int = 0
    """Start-attempt records under its id, which workq counts as attempts."""
    lease_start: int = 0
    """When its lease began; 0: it is not worked on."""
    more: ColdFields = NO_COLD_FIELDS
    """To be read; what is written to is ``own()``."""

    def own(self) -> ColdFields:
        """Return its ``more``, made if it had none, to be written to."""
        if self.more is NO_COLD_FIELDS:
            self.more = ColdFields()
        return self.more

    @property
    def domain(self) -> bytes | None:
        """From the key; None for a plain key."""
        parts = parse_journal_key(self.key)
        return None if parts is None else parts.domain

    @property
    def priority(self) -> int:
        """From the key; 0 for a plain key."""
        parts = parse_journal_key(self.key)
        return 0 if parts is None else parts.priority

    @property
    def superseded(self) -> int:
        """The timestamp of the SET that took its URI while it was worked on; 0: none."""
        return self.more.superseded

    @property
    def due(self) -> int:
        """Since when it can be leased, or could until it was."""
        return self.more.due or max(self.not_before, self.modified)

    @property
    def modified(self) -> int:
        """When its value or its primary key changed last."""
        return self.changed or self.created

    @property
    def links(self) -> list[bytes]:
        """Further keys."""
        return self.more.links

    @property
    def expires(self) -> int:
        """Instant at which it expires; 0: never."""
        return self.more.expires

    @property
    def ttl(self) -> int:
        """By how much a read moves that; 0: not."""
        return self.more.ttl

    @property
    def attempts(self) -> int:
        """Leases that ran out."""
        return self.more.attempts

    @property
    def leased_until(self) -> int:
        """When its lease ends: at the token, unless a step of the clock moved that; 0: none."""
        return self.more.lease_end or self.token

    @property
    def reason(self) -> bytes | None:
        """Buried, with this reason; None: not buried."""
        return self.more.reason

    @property
    def first_due(self) -> int:
        """When the work on its URI was first due that SETs put off since."""
        return self.more.first_due


class BeganAhead(msgspec.Struct):
    """Durations that began later than the present: by a clock that was ahead, and was set right.

    By job id, or by domain, the instant at which each began.
    """

    present_us: int
    """The present; what began later is noted."""
    any: bool = False
    """Whether the log has any records that are later; recovery notes it."""
    leases: dict[bytes, int] = {}
    delays: dict[bytes, int] = {}
    """Those of RELEASE."""
    expiries: dict[bytes, int] = {}
    """Those that TOUCH or a read moved."""
    pauses: dict[bytes, int] = {}

    def note(self, began: dict[bytes, int], name: bytes, time: int) -> None:
        """Note when a duration began, if that is ahead, in the place of one before."""
        if time > self.present_us:
            began[name] = time
        elif began:
            began.pop(name, None)


def _taken(entry: Envelope) -> tuple[bytes, ...]:
    further = (entry.uri, *entry.links)
    keys = [further[each] for each in entry.taken if each < len(further)]
    return tuple(key for key in keys if key is not None)


def replayed_facts(entry: Envelope, position: int, record_bytes: int) -> bytes:
    """Return the packed facts of an entry whose record is at ``position``."""
    return pack_facts_and_record(
        PRIORITY_DEFAULT,
        entry.not_before,
        entry.arrival,
        entry.timestamp,
        entry.created,
        entry.value_type,
        position >> 8,
        position & 0xFF,
        record_bytes,
    )


def replayed_entry(
    entry: Envelope, job_id: bytes, position: int, record_bytes: int
) -> ReplayedEntry:
    """Return the job whose record at ``position`` carries an entry."""
    created = entry.created
    facts = replayed_facts(entry, position, record_bytes)
    changed = 0 if entry.modified == created else entry.modified
    # by position: by name takes twice as long
    job = ReplayedEntry(facts, entry.key, entry.uri, entry.value, job_id, changed, entry.token)
    if (
        entry.expires
        or entry.first_due
        or entry.due
        or entry.superseded
        or entry.attempts
        or entry.reason is not None
        or entry.error is not None
        or entry.erases
        or entry.links
        or entry.ttl
        or entry.taken
    ):
        job.more = ColdFields(
            links=entry.links or NO_COLD_FIELDS.links,
            expires=entry.expires,
            ttl=entry.ttl,
            attempts=entry.attempts,
            reason=entry.reason,
            error=entry.error,
            first_due=entry.first_due,
            due=entry.due,
            superseded=entry.superseded,
            taken=_taken(entry),
            erases=entry.erases,
        )
    return job
