"""Fields of many records: numbers, and places in the segment, an item for each record."""

from __future__ import annotations

from typing import NamedTuple

from fastjournal.spark.decoding.byte_arrays import (
    ByteStrings,
    Instants,
    Integers,
    Mask,
    Numbers,
    Offsets,
    Unsigned,
)


class JobFields(NamedTuple):
    """Fields of the add and schedule records, an item each."""

    rows: Offsets
    """Where they stand among the records."""
    name: ByteStrings
    ttr_ms: Integers
    ttl_ms: Integers
    priority: Integers
    """Zig-zag."""
    max_attempts: Integers
    max_fails: Integers
    payload: ByteStrings
    not_before: Instants
    created: Instants
    valid: Mask
    """Whether all fields have the usual form and fill the record."""


class ResultFields(NamedTuple):
    """Results of the complete and fail records."""

    rows: Offsets
    result: ByteStrings
    ours: Mask
    content: ByteStrings
    """Key of a completion, or its domain where it leaves no tombstone; reason of a failure."""
    timestamp: Unsigned
    """Timestamp of a completion."""
    tombstone: Mask
    """It is a completion that leaves a tombstone."""
    priority: Unsigned
    """Priority of a completion that leaves none."""
    valid: Mask


class EntryFields(NamedTuple):
    """Fields of the envelopes, an item each."""

    rows: Offsets
    fields: dict[str, Integers | ByteStrings]
    """Where an envelope is shorter: 0, nil or empty. No envelope has a field that is not here."""
    links: Links
    """Further keys in the envelopes."""
    valid: Mask


class Links(NamedTuple):
    """Byte strings of which some records have several, in the order of records and of each list."""

    of: Offsets
    """Number of the item that each one belongs to."""
    start: Offsets
    end: Offsets


class LinkOperations(NamedTuple):
    """Operations that give a job one more key."""

    rows: Offsets
    job_id: Offsets
    """Where the id of that job stands."""
    key: ByteStrings


class Heads(NamedTuple):
    """Operations that lead a group: lease and batch."""

    rows: Offsets
    lease: Mask
    following: Numbers
    token: Unsigned
