"""Rows of the view ``entries``: columns of the view ``records``, and the state of an entry."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from fastjournal.cmdlog.live_index import LiveChanges
from fastjournal.errors import LogCorruptError
from fastjournal.keys import parse_journal_key
from fastjournal.spark.decoding.rows import RecordRow
from fastjournal.spark.decoding.view_columns import READABLE, Column


def change_entry(row: RecordRow, changes: LiveChanges | None) -> RecordRow:
    """Return the row of the record that carries an entry, with the entry as it is now.

    Args:
        row: The record; it is changed.
        changes: Changes by later records; None: the entry is as it stands there.

    Raises:
        LogCorruptError: The record carries no entry.
    """
    entry = row.entry
    if entry is None:
        raise LogCorruptError("the record carries no entry")
    if changes is not None:
        changed: dict[str, Any] = msgspec.structs.asdict(changes)
        value = changes.value
        if value is None:
            changed["value"] = entry.value
        elif isinstance(value, tuple):
            kept, size = value
            changed["value"] = entry.value[:kept].ljust(size, b"\0")
        row.entry = msgspec.structs.replace(entry, **changed)
        row.journal = parse_journal_key(changes.key)
    return row


def _state(row: RecordRow) -> str | None:
    if row.entry is None:
        return None
    if row.entry.token:
        return "worked_on"
    return "waiting" if row.entry.reason is None else "buried"


_NAMES = (
    "key", "uri", "links", "domain", "priority", "not_before", "id", "state", "value_type", "value",
    "timestamp", "created", "modified", "expires", "ttl", "arrival", "attempts", "worked_on_until",
    "superseded", "reason", "job_id", "segment", "offset",
)  # fmt: skip
_KNOWN = READABLE | {"state": Column("state", "text", _state)}

ENTRY_COLUMNS = tuple(_KNOWN[name] for name in _NAMES)
ENTRY_ARROW_SCHEMA = pa.schema([(column.name, column.arrow) for column in ENTRY_COLUMNS])
