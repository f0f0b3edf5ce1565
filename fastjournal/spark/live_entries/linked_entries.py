"""Entries with links, resolved at once: what ``LINK`` leaves where nothing else happened.

A link gives its job one more key if no entry stands under that key. So where the records of a label
are entries, none of which meets another, and links, the first claim to a key has it, and a later
one changes nothing. These are the rules of ``cmdlog.recovery.replay_state``; a label with any other
record, or in which two entries meet, is left to the replay. No pyspark here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fastjournal.cmdlog.format.layout import CRC_BYTES, JOB_ID_BYTES, TIME_BYTES
from fastjournal.spark.decoding.byte_arrays import (
    END_BYTES,
    ByteStrings,
    Mask,
    Numbers,
    Offsets,
    SegmentBytes,
)
from fastjournal.spark.decoding.vectorised.chunk import Chunk
from fastjournal.spark.decoding.vectorised.decode import RecordArrays
from fastjournal.spark.live_entries.fetch import entry_columns
from fastjournal.spark.live_entries.partition_replay import ENTRY_ARROW_SCHEMA


class _KeyClaims(NamedTuple):
    """Claims of jobs to keys, in the order of the records and of the fields in each."""

    row: Offsets
    """Record that makes it."""
    owner: Offsets
    """Record of the entry that it is for."""
    start: Offsets
    end: Offsets
    listed: Mask
    """Whether the key is a link, and no primary key or URI."""
    may_fail: Mask
    """Whether it is an operation's, which does nothing if the key is not free."""


def resolve_links(rows: pa.RecordBatch, names: Sequence[str]) -> tuple[Mask, pa.RecordBatch]:
    """Return which records are of labels with entries and links only, and what they leave.

    Args:
        rows: Records as in ``fetch.REPLAYED_SCHEMA``, in the order of label, segment and
            offset; all of each label.
        names: Columns to build, from ``partition_replay.ENTRY_COLUMNS``.
    """
    records = _decode(rows.column("raw"))
    entries = records.entries.rows[records.entries.valid]
    links = records.link_operations.rows
    is_simple = np.zeros(len(rows), np.bool_)
    is_simple[entries] = is_simple[links] = True
    is_simple &= ~records.irregular
    is_simple &= _is_null(rows.column("token")) & (rows.column("doubt").to_numpy() == 0)
    label = rows.column("label").to_numpy()
    group = np.cumsum(np.append(False, label[1:] != label[:-1]))
    owner, is_owned = _find_owners(records, entries, group)
    is_simple &= is_owned
    claims = _find_claims(records, owner)
    is_first = _first_of(records, claims)
    is_simple[claims.row[~is_first & ~claims.may_fail]] = False
    is_bad = np.bincount(group, weights=~is_simple) > 0
    resolved = ~is_bad[group]
    kept = claims.listed & is_first & resolved[claims.row]
    chosen = np.flatnonzero(resolved & (owner == np.arange(len(rows))))
    return resolved, _entries(rows, records, chosen, _KeyClaims(*(c[kept] for c in claims)), names)


def _decode(raw: pa.Array) -> RecordArrays:
    """Return the records whose bytes stand in an array."""
    raw = raw.cast(pa.binary())
    _, offsets, data = raw.buffers()
    start = np.frombuffer(offsets, np.int32)[raw.offset :][: len(raw) + 1].astype(np.int64)
    segment = SegmentBytes(data[start[0] : start[-1]].to_pybytes() + bytes(END_BYTES))
    start -= start[0]
    body = segment.uvarints(start[:-1] + TIME_BYTES).end
    records = RecordArrays(segment, start[:-1], body, start[1:] - CRC_BYTES)
    records.decode(contents=True, operations=True)
    return records


def _is_null(array: pa.Array) -> Mask:
    found: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _codes(segment: SegmentBytes, start: Offsets, end: Offsets) -> Numbers:
    """Return equal numbers for equal byte strings, ascending in the order of first ones."""
    found = segment.binary(start, end).dictionary_encode().indices
    return np.asarray(found.to_numpy(), np.int64)


def _find_owners(records: RecordArrays, entries: Offsets, group: Numbers) -> tuple[Offsets, Mask]:
    """Return the record of the entry that each record is about, and where there is just one."""
    job = _codes(records.segment, records.target, records.target + JOB_ID_BYTES)
    number = np.bincount(job[entries], minlength=int(job.max()) + 1)
    entry = np.full(len(number), len(job))
    entry[job[entries]] = entries
    owner = entry[job]
    # it stands before its links
    is_owned = (number[job] == 1) & (owner <= np.arange(len(job)))
    is_owned[is_owned] = group[owner[is_owned]] == group[is_owned]
    return owner, is_owned


def _find_claims(records: RecordArrays, owner: Offsets) -> _KeyClaims:
    """Return the claims of entries and of link operations."""
    entries, operations = records.entries, records.link_operations
    links, parts = entries.links, list[tuple[Offsets, Offsets, Offsets, bool, bool]]()
    for name in ("key", "uri"):
        field = entries.fields[name]
        assert isinstance(field, ByteStrings)
        there = entries.valid & ~field.nils
        place = entries.rows[there], field.start[there], field.end[there]
        parts.append((*place, False, False))
    valid = entries.valid[links.of]
    place = entries.rows[links.of[valid]], links.start[valid], links.end[valid]
    parts.append((*place, True, False))
    parts.append((operations.rows, operations.key.start, operations.key.end, True, True))
    row, start, end = (np.concatenate([part[index] for part in parts]) for index in range(3))
    listed, may_fail = (
        np.concatenate([np.full(len(part[0]), part[index]) for part in parts]) for index in (3, 4)
    )
    order = np.argsort(start, kind="stable")
    columns = (row, owner[row], start, end, listed, may_fail)
    return _KeyClaims(*(column[order] for column in columns))


def _first_of(records: RecordArrays, claims: _KeyClaims) -> Mask:
    """Return which claims are the first ones to their keys."""
    found = np.ones(len(claims.row), np.bool_)
    if len(found):
        code = _codes(records.segment, claims.start, claims.end)
        found[1:] = code[1:] > np.maximum.accumulate(code)[:-1]
    return found


def _entries(
    rows: pa.RecordBatch,
    records: RecordArrays,
    chosen: Offsets,
    links: _KeyClaims,
    names: Sequence[str],
) -> pa.RecordBatch:
    """Return the entries of these records, with these links."""
    if not len(chosen):
        fields = [ENTRY_ARROW_SCHEMA.field(name) for name in names]
        return pa.RecordBatch.from_pylist([], pa.schema(fields))
    parts = (records.start[chosen], records.body[chosen], records.end[chosen])
    found = RecordArrays(records.segment, *parts)
    found.decode(contents=True, operations=True)
    batch = entry_columns(Chunk(found, 0), names)
    order = np.lexsort((links.start, links.owner))
    ends = np.searchsorted(links.owner[order], chosen, "right").astype(np.int32)
    values = records.segment.binary(links.start, links.end).take(pa.array(order))
    offsets = pa.array(np.append(np.int32(0), ends))
    at = pa.array(chosen)
    columns = {
        "links": pa.ListArray.from_arrays(offsets, values),
        "segment": rows.column("segment").take(at),
        "offset": rows.column("offset").take(at),
    }
    for place, name in enumerate(names):
        if name in columns:
            field = ENTRY_ARROW_SCHEMA.field(name)
            batch = batch.set_column(place, field, columns[name].cast(field.type))
    return batch
