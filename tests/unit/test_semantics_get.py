"""GET by key: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, State, ValueType
from fastjournal.protocol.messages import Pair
from tests.property.subject import SECOND, START, Subject

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


def test_get_returns_one_pair_or_not_found(s: Subject) -> None:
    s.set(b"p", b"one", kind=ValueType.STRING)
    reply = s.get(b"p", flags=Flag.DATA)
    assert reply.pairs == [Pair(b"p", ValueType.STRING, b"one")]
    assert (reply.timeout, reply.flags & Flag.WORKED_ON) == (None, 0)
    missing = s.get(b"q", flags=Flag.DATA)
    assert (missing.code, missing.pairs) == ("not-found", None)


def test_get_without_data_has_the_type_and_no_data(s: Subject) -> None:
    s.set(b"p", b"one", kind=ValueType.STRING)
    assert s.get(b"p").pairs == [Pair(b"p", ValueType.STRING, b"")]


@pytest.mark.warm_only
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_empty_or_oversize_key_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.get(key).code == "bad-key"


def test_uri_that_leads_to_a_newer_entry_is_no_other_key(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    s.lease()
    s.set(OTHER, b"two", uri=URI, at=START + 1)
    assert s.get(JOB, flags=Flag.DATA).pairs == [Pair(JOB, ValueType.BUFFER, b"one")]
    assert s.get(URI, flags=Flag.DATA).pairs == [Pair(URI, ValueType.BUFFER, b"two", OTHER)]


def test_meta_is_returned_only_when_asked_for(s: Subject) -> None:
    s.set(JOB, flags=Flag.PERSIST, at=START - 5)
    assert s.pair(JOB, flags=Flag.DATA).meta is None
    meta = s.pair(JOB, flags=Flag.META).meta
    assert (meta.timestamp_us, meta.created_us, meta.priority) == (START - 5, START, 1)
    assert meta.state == State.PERSISTENT | State.JOURNAL


# --- expiry and touch -----------------------------------------------------------------------------


def test_probe_is_a_read(s: Subject) -> None:
    s.set(b"p", ttl=10 * SECOND)
    s.later(9 * SECOND)
    s.get(b"p")
    s.later(9 * SECOND)
    assert s.value(b"p") == b"v"


@pytest.mark.parametrize("expires", [0, START + 5 * SECOND])
def test_update_timeout_sets_the_expiry(s: Subject, expires: int) -> None:
    s.set(b"p", ttl=60 * SECOND)
    flags = Flag.UPDATE_TIMEOUT | Flag.META
    reply = s.get(b"p", flags=flags, timeout=expires)
    assert reply.timeout is None
    assert reply.pairs is not None
    assert reply.pairs[0].meta is not None
    assert reply.pairs[0].meta.expires_us == expires
    assert reply.pairs[0].meta.worked_on_until_us == 0


# --- leases by GET --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [JOB, b"p"])
def test_timeout_leases_the_entry_and_the_replys_timeout_is_the_token(
    s: Subject, key: bytes
) -> None:
    s.set(key)
    reply = s.get(key, timeout=10 * SECOND, flags=Flag.META)
    assert reply.flags & Flag.WORKED_ON
    assert reply.timeout is not None
    assert reply.timeout // 1000 == (START + 10 * SECOND) // 1000
    assert reply.pairs is not None
    assert reply.pairs[0].meta is not None
    assert reply.pairs[0].meta.worked_on_until_us == reply.timeout
    assert s.delete(key, token=reply.timeout) == ""


def test_lease_of_an_entry_worked_on_is_refused(s: Subject) -> None:
    s.set(JOB)
    token = s.lease()
    reply = s.get(JOB, timeout=SECOND)
    assert (reply.code, reply.timeout, reply.pairs) == ("worked-on", None, None)
    assert s.delete(JOB, token=token) == ""


def test_lease_of_an_entry_whose_uri_is_worked_on_is_worked_on(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease()
    s.set(OTHER, uri=URI, at=START + 1)
    assert s.get(URI, timeout=SECOND).code == "worked-on"
    assert s.get(OTHER, flags=Flag.WORKED_ON).code == ""
    s.delete(JOB, token=token, at=START + 2)
    assert s.get(URI, timeout=SECOND).code == ""
