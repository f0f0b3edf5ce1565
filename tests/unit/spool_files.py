"""Files of a spool: the records in them, and instants at which slots begin."""

from __future__ import annotations

from pathlib import Path

from fastjournal.protocol import Request, decode_request
from fastjournal.spool import format as form

HOUR_US = 3_600_000_000
EIGHT = 1_795_161_600_000_000
"""2026-11-20T08:00:00Z, at which a slot begins."""


def requests_in(path: Path) -> list[Request]:
    """Decode a file that holds nothing but whole records."""
    data = path.read_bytes()
    assert data[:8] == form.FILE_HEADER
    at, found = 8, []
    while at < len(data):
        end = form.record_end(data, at)
        assert end > 0
        if data[at] == form.PENDING:
            found.append(decode_request(data[at + 5 : end - 4]))
        at = end
    return found
