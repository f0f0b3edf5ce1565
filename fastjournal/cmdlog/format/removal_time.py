"""TIME of a removal (complete, delete): its last digits tell the reason.

No clock here gives the part of a TIME below a microsecond. In a removal it says whether a record
took the place of what it removes, and else why it goes. Nanoseconds modulo 1000:

- 1 to 992: the record that takes its place is so many records before this one;
- 993: recovery or compaction wrote it: the job is gone by another record, which tells more;
- 994: a NEXT popped it;
- 995: a PURGE deleted it;
- 996: a DELETE without a lease token deleted it;
- 997: an entry in memory only took its place, which no record names;
- 998: its URI was taken while it was worked on, by an entry anywhere before;
- 999: none of these: the worker completed it;
- 0: not told, by an older version.

In logs of older versions 999 also stands for what 994 to 997 mean.

Replay goes by it where a segment has damage: ``cmdlog.recovery.removals``. The history goes by it
everywhere: ``fastjournal.spark.history.extractor``.
"""

from __future__ import annotations

from struct import Struct

from fastjournal.cmdlog.format.records import encode_time

REPLACED_UNTOLD = 0
REPLACED_MAX = 992
"""Records between a replacement and the removal: a group of compaction has three at most."""
REPLACED_BEFORE = 993
REMOVED_BY_NEXT = 994
REMOVED_BY_PURGE = 995
REMOVED_BY_DELETE = 996
REPLACED_UNLOGGED = 997
REPLACED_BY_URI = 998
REPLACED_BY_NONE = 999

_nanoseconds_at = Struct(">9xi").unpack_from


encode_removal_time = encode_time
"""Takes the instant, in microseconds since the Unix epoch, and how many records before the removal
that one stands which takes the place of what it removes, or one of the reasons above. Returns the
TIME of a removal."""


def decode_replaced(data: bytes, offset: int) -> int:
    """Return ``replaced`` of the removal whose record starts at ``offset``."""
    (nanoseconds,) = _nanoseconds_at(data, offset)
    return int(nanoseconds) % 1000
