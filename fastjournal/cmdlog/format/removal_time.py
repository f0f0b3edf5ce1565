"""TIME of a removal (complete, delete): its last digits tell what takes the entry's place.

No clock here gives the part of a TIME below a microsecond. In a removal it says whether a record
took the place of what it removes. Nanoseconds modulo 1000:

- 1 to 997: the record that takes its place is so many records before this one;
- 998: its URI was taken while it was worked on, by an entry anywhere before;
- 999: nothing took its place;
- 0: not told, by an older version.

Replay goes by it where a segment has damage: ``cmdlog.recovery.removals``.
"""

from __future__ import annotations

from struct import Struct

from fastjournal.cmdlog.format.records import encode_time

REPLACED_UNTOLD = 0
REPLACED_MAX = 997
"""Records between a replacement and the removal: a group of compaction has three at most."""
REPLACED_BY_URI = 998
REPLACED_BY_NONE = 999

_nanoseconds_at = Struct(">9xi").unpack_from


encode_removal_time = encode_time
"""Takes the instant, in microseconds since the Unix epoch, and how many records before the removal
that one stands which takes the place of what it removes, or ``REPLACED_BY_URI`` or
``REPLACED_BY_NONE``. Returns the TIME of a removal."""


def decode_replaced(data: bytes, offset: int) -> int:
    """Return ``replaced`` of the removal whose record starts at ``offset``."""
    (nanoseconds,) = _nanoseconds_at(data, offset)
    return int(nanoseconds) % 1000
