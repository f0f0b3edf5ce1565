"""Requests to the engine in test_engine_model.py: few values of each kind, so that they meet."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from fastjournal.protocol.constants import Flag, ValueType
from tests.property.model_parts import U64_MAX
from tests.property.subject import SECOND, START

JOURNAL_KEYS = [
    b"a:1:0:x",
    b"a:1:0:y",
    b"a:2:0:x",
    b"a:1:%d:x" % (START + 4 * SECOND),
    b"b:1:0:x",
    b"b:7:%d:x" % (START + 4 * SECOND),
    b"b:1:%d:y" % (START + 9 * SECOND),
    b"c:1:%d:" % (START + 4 * SECOND),
]
PLAIN_KEYS = [b"p", b"q", b"a:1:0", b"a:256:0:x"]
URIS = [b"u", b"v", b"w" * 60]
ALL_KEYS = JOURNAL_KEYS + PLAIN_KEYS + URIS
BAD_KEYS = [b"", b"k" * 4097]
DOMAINS = [b"", b"", b"a", b"b", b"c", b"none"]
SESSIONS = ["one", "two", "three"]
DURATIONS = [0, 1, 999, SECOND, 2 * SECOND, 5 * SECOND, 20 * SECOND, U64_MAX]

settable = st.sampled_from(JOURNAL_KEYS * 4 + PLAIN_KEYS * 2 + URIS + BAD_KEYS)
findable = st.sampled_from(JOURNAL_KEYS * 3 + (PLAIN_KEYS + URIS) * 2 + BAD_KEYS)
uris = st.sampled_from([None] * 6 + URIS * 4 + [b"p", b"a:1:0:x", b"", b"k" * 4097])
durations = st.sampled_from(DURATIONS)
optional_durations = st.none() | durations
leases = st.sampled_from([None, 0, 1, SECOND, 5 * SECOND, 5 * SECOND, 30 * SECOND, U64_MAX])
ttls = st.sampled_from([None] * 12 + [0, 1, SECOND, 5 * SECOND, 5 * SECOND, U64_MAX])
expiries = st.sampled_from([None] * 12 + [0, 1, -1, SECOND, 5 * SECOND, 5 * SECOND])
job_uris = st.sampled_from([*URIS, URIS[0], URIS[0], None])
fresh = st.booleans() | st.just(True)
ages = st.sampled_from([0, 1, SECOND, 2 * SECOND, 9 * SECOND, -3 * SECOND, -3 * SECOND - 1])
picks = st.integers(0, 99)
values = st.sampled_from(
    [(ValueType.BUFFER, b"x"), (ValueType.STRING, b"y" * 40), (ValueType.INTEGER, b"z" * 150)] * 4
    + [(ValueType.VOID, b""), (ValueType.VOID, b"x"), (6, b"x")]
    + [None]
)

NUMBERS: list[tuple[int, bytes]] = [
    *((ValueType.INTEGER, number.to_bytes(1, signed=True)) for number in (1, -1, 100, -128)),
    *((ValueType.INTEGER, number.to_bytes(2, signed=True)) for number in (-30_000, 30_000)),
    (ValueType.INTEGER, (2**31 - 1).to_bytes(4)),
    (ValueType.INTEGER, (2**63 - 1).to_bytes(8)),
    *((ValueType.FLOAT, struct.pack(">f", number)) for number in (0.1, -2.0, 3.4e38)),
    *((ValueType.FLOAT, struct.pack(">d", number)) for number in (0.1, 1e300, -1.7e308)),
    *((ValueType.FLOAT, struct.pack(">d", float(name))) for name in ("inf", "-inf", "nan")),
]
BOOLEANS: list[tuple[int, bytes]] = [(ValueType.BOOLEAN, data) for data in (b"\0", b"\1", b"\7")]
ODD: list[tuple[int, bytes] | None] = [
    *((ValueType.INTEGER, b""), (ValueType.INTEGER, b"abc"), (ValueType.FLOAT, b"ab")),
    *((ValueType.STRING, b"1"), None),
]
SIZES: list[tuple[int, bytes] | None] = [
    *((ValueType.INTEGER, size.to_bytes(2, signed=True)) for size in (0, 1, 3, 60, 300, -1)),
    *((ValueType.INTEGER, (10**6 + 1).to_bytes(4)), (ValueType.INTEGER, b"\0\0\5")),
    *((ValueType.FLOAT, struct.pack(">f", 3.0)), None),
]
numbers = st.sampled_from(NUMBERS * 4 + ODD)
storable = st.sampled_from(NUMBERS + BOOLEANS * 4 + ODD[:3] + [(ValueType.STRING, b"text")] * 3)
sizes = st.sampled_from(SIZES)
lock_durations = st.sampled_from([None, 0, 1, SECOND, 5 * SECOND, 5 * SECOND, U64_MAX])
pause_durations = st.sampled_from([None, 0, 0, 1, SECOND, 2 * SECOND, 5 * SECOND, U64_MAX])
reasons = st.sampled_from([None, b"why", b"", b"\xff", b"r" * 4096, b"r" * 4097])
link_keys = st.sampled_from(
    [*(b"l", b"m", b"l", b"m", b"p", b"u", b"a:1:0:x", b"a:3:0:l"), None, b"", b"k" * 4097]
)
renames = st.sampled_from(JOURNAL_KEYS * 3 + PLAIN_KEYS * 2 + [b"u", b"l", None, b"", b"k" * 4097])
ALL_KEYS += [b"l", b"m", b"a:3:0:l"]


def flags(*names: Flag) -> st.SearchStrategy[int]:
    """Any combination of these flags."""
    return st.lists(st.sampled_from(names), unique=True).map(sum)
