"""What the engine is asked in test_engine_model.py: few values of each kind, so that they meet."""

from __future__ import annotations

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


def flags(*names: Flag) -> st.SearchStrategy[int]:
    """Any combination of these flags."""
    return st.lists(st.sampled_from(names), unique=True).map(sum)
