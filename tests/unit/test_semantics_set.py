"""SET: every sentence of docs/protocol.md about it, by example, on the engine and on the model."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, State, ValueType
from tests.property.model_parts import U64_MAX
from tests.property.subject import SECOND, START, Subject

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


# --- plain SET ------------------------------------------------------------------------------------


@pytest.mark.rule("Functions: 2 SET")
def test_set_stores_the_value_under_its_key(s: Subject) -> None:
    assert s.set(b"p", b"one") == ""
    assert s.value(b"p") == b"one"


@pytest.mark.rule("Request, client to daemon: value data", "Values: 1 buffer", "Values: 2 string")
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        pytest.param(ValueType.VOID, b"", marks=pytest.mark.warm_only),
        (ValueType.BUFFER, b"\x00\xff"),
        (ValueType.STRING, "ä".encode()),
        pytest.param(ValueType.INTEGER, b"123", marks=pytest.mark.warm_only),
        pytest.param(ValueType.FLOAT, b"x", marks=pytest.mark.warm_only),
        pytest.param(ValueType.BOOLEAN, b"\x07", marks=pytest.mark.warm_only),
    ],
)
def test_daemon_stores_data_as_it_came(s: Subject, kind: ValueType, data: bytes) -> None:
    assert s.set(b"p", data, kind=kind) == ""
    pair = s.pair(b"p")
    assert (pair.value_type, pair.value) == (kind, data)


@pytest.mark.warm_only
@pytest.mark.rule("Errors: `bad-key`", "Keys: At most 4,096 bytes, and not empty")
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_empty_or_oversize_key_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.set(key) == "bad-key"


@pytest.mark.warm_only
@pytest.mark.rule("Keys: At most 4,096 bytes, and not empty")
@pytest.mark.parametrize("uri", [b"", b"u" * 4097, JOB])
def test_empty_or_oversize_uri_or_the_key_itself_is_bad_key(s: Subject, uri: bytes) -> None:
    assert s.set(JOB, uri=uri) == "bad-key"
    assert s.value(JOB) is None


@pytest.mark.rule("Keys: At most 4,096 bytes, and not empty")
def test_keys_and_uris_of_4096_bytes_are_taken(s: Subject) -> None:
    assert s.set(b"k" * 4096, uri=b"u" * 4096) == ""
    assert s.value(b"u" * 4096) == b"v"


@pytest.mark.warm_only
@pytest.mark.rule("Errors: `bad-value`", "Values: 0 void")
@pytest.mark.parametrize(
    ("data", "kind"), [(None, 0), (b"x", 6), (b"x", 255), (b"x", ValueType.VOID)]
)
def test_set_without_value_with_a_type_over_5_or_void_with_data_is_bad_value(
    s: Subject, data: bytes | None, kind: int
) -> None:
    assert s.set(b"p", data, kind=kind) == "bad-value"
    assert s.value(b"p") is None


@pytest.mark.rule("Errors: `exists`", "Functions: 2 SET")
def test_set_without_overwrite_of_a_key_that_exists_is_exists(s: Subject) -> None:
    s.set(b"p", b"one")
    assert s.set(b"p", b"two", at=START + 1) == "exists"
    assert s.value(b"p") == b"one"


# --- journal keys ---------------------------------------------------------------------------------


@pytest.mark.rule("Metadata block, 68 bytes: 65 state", "Keys: The form of a journal key")
@pytest.mark.parametrize(
    ("key", "is_journal"),
    [
        (b"a:1:0:x", True),
        (b"a:255:0:", True),
        (b"a:001:00000000000000000000:x:y", True),
        (b"a:0:18446744073709551615:x", True),
        (b"a:0:18446744073709551616:x", False),
        (b"a:256:0:x", False),
        (b"a:0001:0:x", False),
        (b"a::0:x", False),
        (b":1:0:x", False),
        (b"a:1:0", False),
        (b"a:1:000000000000000000000:x", False),
        (b"a:-1:0:x", False),
    ],
)
def test_entry_is_a_journal_entry_by_the_form_of_its_key(
    s: Subject, key: bytes, is_journal: bool
) -> None:
    s.set(key)
    assert bool(s.meta(key).state & State.JOURNAL) is is_journal
    assert s.stats()["waiting"] == int(is_journal)


@pytest.mark.rule(
    "Metadata block, 68 bytes: 56 not before", "Metadata block, 68 bytes: 64 priority"
)
def test_priority_and_not_before_come_from_the_key(s: Subject) -> None:
    s.set(b"a:7:%d:x" % (START + 5))
    meta = s.meta(b"a:7:%d:x" % (START + 5))
    assert (meta.priority, meta.not_before_us) == (7, START + 5)


@pytest.mark.rule("Metadata block, 68 bytes: 64 priority")
@pytest.mark.warm_only("tells whether an entry is persistent")
def test_plain_key_has_neither_priority_nor_not_before(s: Subject) -> None:
    s.set(b"p")
    meta = s.meta(b"p")
    assert (meta.priority, meta.not_before_us, meta.state) == (0, 0, 0)


# --- metadata -------------------------------------------------------------------------------------


@pytest.mark.rule(
    "Request, client to daemon: timestamp",
    "Metadata block, 68 bytes: 0 timestamp of the last write",
)
def test_set_is_dated_by_the_writer_and_by_the_daemon(s: Subject) -> None:
    s.later(5)
    s.set(b"p", at=START + 1)
    meta = s.meta(b"p")
    assert (meta.timestamp_us, meta.created_us, meta.modified_us) == (
        START + 1,
        START + 5,
        START + 5,
    )


@pytest.mark.rule(
    "Flags of a request: 9 PERSIST",
    "Flags of a request: 12 (PERSIST)",
    "Metadata block, 68 bytes: 65 state",
)
@pytest.mark.parametrize("flag", [Flag.PERSIST, Flag.PERSIST_ALIAS])
def test_set_persists_by_either_bit(s: Subject, flag: Flag) -> None:
    s.set(b"p", flags=flag)
    assert s.meta(b"p").state == State.PERSISTENT


@pytest.mark.rule("Last writer wins (timestamps, tombstones): SET with OVERWRITE")
@pytest.mark.warm_only("tells whether an entry is persistent")
def test_expiry_ttl_and_persistence_are_the_new_sets(s: Subject) -> None:
    s.set(b"p", flags=Flag.PERSIST, timeout=START + 9 * SECOND, ttl=5)
    s.set(b"p", flags=Flag.OVERWRITE, at=START + 1)
    meta = s.meta(b"p")
    assert (meta.expires_us, meta.ttl_us, meta.state) == (0, 0, 0)


# --- expiry ---------------------------------------------------------------------------------------


def test_entry_is_gone_at_its_expiry_instant_and_not_before(s: Subject) -> None:
    s.set(b"p", timeout=START + SECOND)
    s.later(SECOND - 1)
    assert s.value(b"p") == b"v"
    s.later(1)
    assert s.value(b"p") is None


@pytest.mark.rule("Functions: 2 SET")
def test_timeout_of_0_is_never(s: Subject) -> None:
    s.set(b"p", timeout=0, ttl=SECOND)
    s.later(100 * SECOND)
    assert s.meta(b"p").expires_us == 0


@pytest.mark.rule("Metadata block, 68 bytes: 40 ttl")
def test_ttl_without_timeout_makes_the_first_expiry_now_plus_ttl(s: Subject) -> None:
    s.set(b"p", ttl=SECOND)
    s.later(SECOND)
    assert s.value(b"p") is None


def test_ttl_of_0_is_none(s: Subject) -> None:
    s.set(b"p", ttl=0)
    s.later(1)
    meta = s.meta(b"p")
    assert (meta.expires_us, meta.ttl_us) == (0, 0)


@pytest.mark.rule("Last writer wins (timestamps, tombstones): The last instant")
def test_expiry_beyond_the_last_instant_is_the_last_instant(s: Subject) -> None:
    s.set(b"p", ttl=U64_MAX)
    assert s.meta(b"p").expires_us == U64_MAX


@pytest.mark.rule("Last writer wins (timestamps, tombstones): Other causes of a tombstone")
def test_expiry_leaves_no_tombstone(s: Subject) -> None:
    s.set(b"p", timeout=START + 1, at=START)
    s.later(1)
    assert s.set(b"p", b"again", at=START) == ""
    assert s.value(b"p") == b"again"


def test_expired_job_is_not_handed_out(s: Subject) -> None:
    s.set(JOB, timeout=START + SECOND)
    s.later(SECOND)
    assert s.jobs() == []


# --- which write wins -----------------------------------------------------------------------------


@pytest.mark.rule(
    "Errors: `stale`",
    "Last writer wins (timestamps, tombstones): A smaller timestamp loses with `stale`",
)
@pytest.mark.parametrize("flags", [0, Flag.OVERWRITE])
def test_set_with_a_smaller_timestamp_than_the_entry_is_stale(s: Subject, flags: int) -> None:
    s.set(b"p", b"one", at=START)
    assert s.set(b"p", b"two", at=START - 1, flags=flags) == "stale"
    assert s.value(b"p") == b"one"


@pytest.mark.rule("Last writer wins (timestamps, tombstones): The same timestamp is a repeat")
@pytest.mark.parametrize("flags", [0, Flag.OVERWRITE])
def test_set_with_the_entrys_timestamp_is_a_repeat_and_changes_nothing(
    s: Subject, flags: int
) -> None:
    s.set(JOB, b"one", at=START, uri=URI)
    token = s.lease()
    before = s.meta(JOB)
    assert s.set(JOB, b"two", at=START, uri=b"other", flags=flags | Flag.PERSIST) == ""
    assert s.meta(JOB) == before
    assert s.value(JOB) == b"one"
    assert s.value(b"other") is None
    assert s.delete(JOB, token=token) == ""


@pytest.mark.rule("Last writer wins (timestamps, tombstones): The same timestamp is a repeat")
def test_repeat_is_recognised_before_its_arguments_are_checked(s: Subject) -> None:
    s.set(b"p", b"one", at=START)
    assert s.set(b"p", None, at=START) == ""
    assert s.value(b"p") == b"one"


@pytest.mark.warm_only
@pytest.mark.rule(
    "Errors: `clock-skew`",
    "Last writer wins (timestamps, tombstones): `clock-skew`",
)
def test_timestamp_up_to_the_skew_ahead_is_taken_and_beyond_is_clock_skew(s: Subject) -> None:
    assert s.set(b"p", at=START + 60 * SECOND) == ""
    assert s.set(b"q", at=START + 60 * SECOND + 1) == "clock-skew"
    assert s.value(b"q") is None


@pytest.mark.rule("Last writer wins (timestamps, tombstones): A SET whose timestamp is not later")
@pytest.mark.parametrize(("at", "code"), [(START - 1, "stale"), (START, "stale"), (START + 1, "")])
def test_set_wins_over_a_tombstone_only_with_a_larger_timestamp(
    s: Subject, at: int, code: str
) -> None:
    s.set(b"p", at=START - 5)
    s.delete(b"p", at=START)
    assert s.set(b"p", at=at) == code


def test_set_that_wins_over_a_tombstone_erases_it(s: Subject) -> None:
    s.delete(b"p", at=START)
    s.set(b"p", at=START + 1, timeout=START + 5)
    s.later(5)
    assert s.set(b"p", at=START) == ""


@pytest.mark.rule("Last writer wins (timestamps, tombstones): A SET whose timestamp is not later")
def test_set_repeated_after_its_job_was_done_is_stale(s: Subject) -> None:
    s.set(JOB, at=START)
    s.delete(JOB, token=s.lease(), at=START)
    assert s.set(JOB, at=START) == "stale"


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): Lifetime and number of tombstones")
def test_tombstones_are_kept_for_tombstone_ttl(s: Subject) -> None:
    s = s.under(tombstone_ttl_us=SECOND)
    s.delete(b"p", at=START)
    s.later(SECOND - 1)
    assert s.set(b"p", at=START) == "stale"
    s.later(1)
    assert s.set(b"p", at=START) == ""


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): Lifetime and number of tombstones")
def test_oldest_tombstones_go_first(s: Subject) -> None:
    s = s.under(tombstones_max=2)
    for key in (b"p", b"q", b"r"):
        s.delete(key, at=START)
    assert [s.set(key, at=START) for key in (b"r", b"q", b"p")] == ["stale", "stale", ""]


# --- which error, where several apply -------------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): Precedence of errors")
def test_bad_arguments_come_before_all_other_errors(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.set(b"p", None, at=START + 999 * SECOND) == "bad-value"


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): Precedence of errors")
def test_clock_skew_comes_before_exists(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.set(b"p", at=START + 999 * SECOND) == "clock-skew"


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): Precedence of errors")
def test_stale_comes_before_exists(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.set(b"p", at=START - 1) == "stale"


@pytest.mark.warm_only
def test_stale_uri_comes_before_an_existing_key(s: Subject) -> None:
    s.set(JOB, at=START, uri=URI)
    s.set(OTHER, at=START - 5)
    assert s.set(OTHER, at=START - 1, uri=URI) == "stale"


# --- OVERWRITE ------------------------------------------------------------------------------------


@pytest.mark.rule("Flags of a request: 5 OVERWRITE", "Metadata block, 68 bytes: 8 created")
def test_overwrite_replaces_the_value_and_keeps_created(s: Subject) -> None:
    s.set(b"p", b"one", at=START)
    s.later(5)
    assert s.set(b"p", b"two", kind=ValueType.STRING, at=START + 1, flags=Flag.OVERWRITE) == ""
    pair = s.pair(b"p")
    assert pair.meta is not None
    assert (pair.value_type, pair.value) == (ValueType.STRING, b"two")
    assert (pair.meta.timestamp_us, pair.meta.created_us) == (START + 1, START)
    assert pair.meta.modified_us == START + 5


def test_overwrite_of_nothing_is_a_set(s: Subject) -> None:
    assert s.set(b"p", flags=Flag.OVERWRITE) == ""
    assert s.value(b"p") == b"v"


@pytest.mark.rule("Last writer wins (timestamps, tombstones): SET with OVERWRITE")
def test_overwrite_ends_a_lease_and_the_token_is_lost(s: Subject) -> None:
    s.set(JOB, b"one")
    token = s.lease()
    s.set(JOB, b"two", at=START + 1, flags=Flag.OVERWRITE)
    assert s.meta(JOB).worked_on_until_us == 0
    assert s.delete(JOB, token=token, at=START + 2) == "lease-lost"
    assert s.jobs() == [JOB]


@pytest.mark.rule("Last writer wins (timestamps, tombstones): SET with OVERWRITE")
def test_overwrite_resets_attempts_and_burial(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(JOB)
    s.lease(timeout=SECOND)
    s.later(2 * SECOND)
    assert s.meta(JOB).state & State.BURIED
    s.set(JOB, at=START + 1, flags=Flag.OVERWRITE)
    meta = s.meta(JOB)
    assert (meta.attempts, meta.state & State.BURIED) == (0, 0)
    assert s.jobs() == [JOB]


@pytest.mark.rule("Last writer wins (timestamps, tombstones): SET with OVERWRITE")
def test_overwrite_resets_a_delay(s: Subject) -> None:
    s.set(JOB)
    s.release(JOB, s.lease(), ttl=100 * SECOND)
    assert s.jobs() == []
    s.set(JOB, at=START + 1, flags=Flag.OVERWRITE)
    assert s.meta(JOB).not_before_us == 0
    assert s.jobs() == [JOB]


@pytest.mark.rule("Last writer wins (timestamps, tombstones): SET with OVERWRITE")
def test_overwrite_keeps_arrival(s: Subject) -> None:
    s.set(JOB)
    s.set(OTHER)
    s.set(JOB, at=START + 1, flags=Flag.OVERWRITE)
    assert s.jobs(count=2) == [JOB, OTHER]


@pytest.mark.rule("Last writer wins (timestamps, tombstones): SET with OVERWRITE")
def test_overwrite_keeps_the_uri_unless_a_new_one_comes(s: Subject) -> None:
    s.set(JOB, b"one", uri=b"u")
    s.set(JOB, b"two", at=START + 1, flags=Flag.OVERWRITE)
    assert s.value(b"u") == b"two"
    s.set(JOB, b"three", at=START + 2, flags=Flag.OVERWRITE, uri=b"v")
    assert (s.value(b"u"), s.value(b"v")) == (None, b"three")


@pytest.mark.rule("Last writer wins (timestamps, tombstones): SET with OVERWRITE")
@pytest.mark.parametrize("at", [START, START + 1])
@pytest.mark.parametrize("flags", [0, Flag.OVERWRITE])
def test_key_that_is_a_further_key_of_another_entry_exists(s: Subject, at: int, flags: int) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    assert s.set(URI, b"two", at=at, flags=flags) == "exists"
    assert s.value(URI) == b"one"


@pytest.mark.warm_only
def test_older_set_on_a_further_key_is_stale(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    assert s.set(URI, at=START - 1) == "stale"


# --- URI: no duplicates ---------------------------------------------------------------------------


def test_entry_is_found_under_its_uri(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI)
    assert s.value(URI) == b"one"


@pytest.mark.rule("SET with a URI (deduplication): A waiting entry is replaced")
def test_newer_entry_replaces_a_waiting_one_of_the_same_uri(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    s.later(5)
    assert s.set(OTHER, b"two", uri=URI, at=START + 1) == ""
    assert s.value(JOB) is None
    assert s.value(URI) == b"two"
    assert s.stats()["entries"] == 1


@pytest.mark.rule(
    "Metadata block, 68 bytes: 8 created",
    "SET with a URI (deduplication): A waiting entry is replaced",
)
def test_new_entry_keeps_the_replaced_ones_created_time(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    s.later(5)
    s.set(OTHER, uri=URI, at=START + 1)
    meta = s.meta(OTHER)
    assert (meta.created_us, meta.modified_us) == (START, START + 5)


def test_equal_timestamp_replaces_too(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    assert s.set(OTHER, uri=URI, at=START) == ""
    assert s.value(JOB) is None


@pytest.mark.rule("SET with a URI (deduplication): An older SET is `stale`")
@pytest.mark.parametrize("worked_on", [False, True])
def test_older_set_of_the_same_uri_is_stale_worked_on_or_not(s: Subject, worked_on: bool) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    if worked_on:
        s.lease()
    assert s.set(OTHER, b"two", uri=URI, at=START - 1) == "stale"
    assert s.value(OTHER) is None
    assert s.value(URI) == b"one"


@pytest.mark.rule("Last writer wins (timestamps, tombstones): Other causes of a tombstone")
def test_replaced_entry_leaves_a_tombstone_with_the_replacing_timestamp(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    s.set(OTHER, uri=URI, at=START + 5)
    assert s.set(JOB, at=START + 5) == "stale"
    assert s.set(JOB, at=START + 6) == ""


@pytest.mark.rule("SET with a URI (deduplication): A leased entry stays until its lease ends")
def test_worked_on_entry_stays_and_the_uri_leads_to_the_new_one(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    s.lease()
    s.later(5)
    assert s.set(OTHER, b"two", uri=URI, at=START + 1) == ""
    assert s.value(JOB) == b"one"
    assert s.value(URI) == b"two"
    assert s.meta(OTHER).created_us == START + 5


@pytest.mark.rule("SET with a URI (deduplication): A leased entry stays until its lease ends")
def test_new_entry_waits_while_the_old_one_is_worked_on(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease(timeout=10 * SECOND)
    s.set(OTHER, uri=URI, at=START + 1)
    reply = s.next()
    assert (reply.pairs, reply.timeout) == ([], token)
    s.delete(JOB, token=token, at=START + 2)
    assert s.jobs() == [OTHER]


@pytest.mark.rule("SET with a URI (deduplication): A leased entry stays until its lease ends")
def test_completing_the_old_one_does_not_touch_the_new_one(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease()
    s.set(OTHER, b"two", uri=URI, at=START + 1)
    s.delete(JOB, token=token, at=START + 2)
    assert s.value(JOB) is None
    assert s.value(URI) == b"two"


@pytest.mark.rule("Last writer wins (timestamps, tombstones): Other causes of a tombstone")
@pytest.mark.parametrize("how", ["runs out", "is released"])
def test_old_one_is_dropped_when_its_lease_ends(s: Subject, how: str) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease(timeout=10 * SECOND)
    s.set(OTHER, uri=URI, at=START + 1)
    if how == "runs out":
        s.later(11 * SECOND)
    else:
        assert s.release(JOB, token) == ""
    assert s.value(JOB) is None
    assert s.set(JOB, at=START + 1) == "stale"
    assert s.jobs(count=2) == [OTHER]


@pytest.mark.rule("SET with a URI (deduplication): A leased entry stays until its lease ends")
def test_old_one_is_dropped_also_when_the_new_one_was_deleted_meanwhile(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease()
    s.set(OTHER, uri=URI, at=START + 1)
    s.delete(URI, at=START + 2)
    s.release(JOB, token)
    assert s.value(JOB) is None
    assert s.jobs(count=2) == []


def test_set_of_a_third_entry_replaces_the_second_and_waits_for_the_first(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease()
    s.set(OTHER, uri=URI, at=START + 1)
    s.set(b"b:1:0:z", uri=URI, at=START + 2)
    assert s.value(OTHER) is None
    assert s.jobs() == []
    s.release(JOB, token)
    assert s.jobs(count=3) == [b"b:1:0:z"]


def test_entry_set_after_the_second_was_deleted_waits_for_the_first(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease()
    s.set(OTHER, uri=URI, at=START + 1)
    s.delete(OTHER, at=START + 2)
    s.set(b"b:1:0:z", uri=URI, at=START + 3)
    assert s.jobs() == []
    s.release(JOB, token)
    assert s.jobs() == [b"b:1:0:z"]


def test_touch_of_the_old_ones_lease_keeps_the_new_one_waiting(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease(timeout=10 * SECOND)
    s.set(OTHER, uri=URI, at=START + 1)
    longer = s.touch(JOB, token, ttl=60 * SECOND).timeout
    assert s.next().timeout == longer
    s.later(11 * SECOND)
    assert s.next().timeout == longer


def test_overwriting_the_old_one_makes_it_an_entry_of_its_own(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    s.lease()
    s.set(OTHER, b"two", uri=URI, at=START + 1)
    assert s.set(JOB, b"three", at=START + 2, flags=Flag.OVERWRITE) == ""
    assert (s.value(JOB), s.value(URI)) == (b"three", b"two")
    assert s.jobs(count=2) == [JOB, OTHER]


@pytest.mark.rule("SET with a URI (deduplication): A URI that is a primary key")
def test_uri_that_is_the_primary_key_of_another_entry_exists(s: Subject) -> None:
    s.set(b"p", b"one", at=START)
    for _ in range(2):
        assert s.set(JOB, uri=b"p", at=START + 1) == "exists"
        s.get(b"p", timeout=SECOND)
    assert s.set(JOB, uri=b"p", at=START - 1) == "stale"
    assert s.value(b"p") == b"one"


def test_overwrite_can_take_a_uri_from_another_entry(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    s.later(5)
    s.set(OTHER, b"two", at=START + 1)
    s.later(5)
    assert s.set(OTHER, b"three", uri=URI, at=START + 2, flags=Flag.OVERWRITE) == ""
    assert s.value(URI) == b"three"
    assert s.value(JOB) is None
    assert s.meta(OTHER).created_us == START + 5


def test_plain_keys_have_unique_uris_too(s: Subject) -> None:
    s.set(b"p", b"one", uri=URI, at=START)
    s.set(b"q", b"two", uri=URI, at=START + 1)
    assert s.value(b"p") is None
    assert s.value(URI) == b"two"


def test_set_of_the_same_uri_ten_times_is_worked_on_once(s: Subject) -> None:
    for n in range(10):
        s.later(SECOND // 10)
        assert s.set(b"a:1:0:%d" % n, uri=URI, at=s.now) == ""
    assert s.jobs(count=100) == [b"a:1:0:9"]
    assert s.meta(URI).created_us == START + SECOND // 10


def test_entry_that_is_worked_on_is_displaced_by_one_without_a_timestamp(s: Subject) -> None:
    assert s.set(JOB, uri=URI, at=0) == ""
    token = s.lease()
    assert s.set(OTHER, b"new", uri=URI, at=0) == ""
    assert s.value(URI) == b"new"
    assert s.jobs() == []
    s.now = token
    assert s.jobs() == [OTHER]
    assert s.value(JOB) is None
