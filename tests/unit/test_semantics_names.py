"""LINK and RENAME: every sentence of docs/protocol.md about them, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, ValueType
from tests.property.subject import SECOND, START, Subject

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
MOVED = b"b:7:0:z"
URI = b"http://example.org/"
LINK = b"shortcut"


# --- LINK -----------------------------------------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.parametrize(
    ("key", "link", "code"),
    [
        *((b"", LINK, "bad-key"), (b"k" * 4097, LINK, "bad-key"), (JOB, None, "bad-request")),
        *((JOB, b"", "bad-key"), (JOB, b"k" * 4097, "bad-key"), (b"none", LINK, "not-found")),
    ],
)
def test_link_needs_two_keys_and_an_entry(
    s: Subject, key: bytes, link: bytes | None, code: str
) -> None:
    s.set(JOB)
    assert s.link(key, link) == code
    assert s.value(LINK) is None


@pytest.mark.warm_only
@pytest.mark.parametrize("taken", [JOB, URI, LINK, OTHER, b"other's uri"])
def test_key_that_stands_there_already_is_exists(s: Subject, taken: bytes) -> None:
    s.set(JOB, uri=URI)
    s.set(OTHER, uri=b"other's uri")
    s.link(JOB, LINK)
    assert s.link(JOB, taken) == "exists"


@pytest.mark.warm_only
def test_entry_has_at_most_64_links(s: Subject) -> None:
    s.set(JOB)
    assert [s.link(JOB, b"%d" % number) for number in range(65)] == [""] * 64 + ["too-large"]
    assert s.link(JOB, b"0") == "exists"


@pytest.mark.warm_only
def test_links_of_an_entry_have_at_most_32_kib(s: Subject) -> None:
    s.set(JOB)
    links = [b"%d" % number + bytes(4095) for number in range(8)]
    assert [s.link(JOB, link) for link in links] == [""] * 8
    assert s.link(JOB, b"1") == "too-large"


def test_set_with_overwrite_keeps_links_but_that_which_becomes_its_uri(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    s.link(JOB, LINK)
    s.link(JOB, b"second")
    assert s.set(JOB, b"two", uri=LINK, flags=Flag.OVERWRITE, at=START + 1) == ""
    assert [s.value(key) for key in (URI, LINK, b"second")] == [None, b"two", b"two"]
    assert s.pair(JOB).second_key == LINK
    assert s.set(JOB, b"three", uri=URI, flags=Flag.OVERWRITE, at=START + 2) == ""
    assert [s.value(key) for key in (URI, LINK, b"second")] == [b"three", None, b"three"]


def test_uri_that_is_a_link_of_a_waiting_entry_replaces_it(s: Subject) -> None:
    s.set(JOB, at=START)
    s.link(JOB, LINK)
    assert s.set(OTHER, uri=LINK, at=START - 1) == "stale"
    assert s.set(OTHER, uri=LINK, at=START + 1) == ""
    assert s.value(JOB) is None
    assert s.jobs(count=5) == [OTHER]


def test_link_taken_by_a_uri_can_be_given_again_when_that_is_gone(s: Subject) -> None:
    s.set(JOB, b"old", at=START)
    s.link(JOB, LINK)
    s.lease(timeout=5 * SECOND)
    s.set(OTHER, uri=LINK, at=START + 1)
    assert s.link(JOB, LINK) == "exists"
    s.delete(OTHER, at=START + 2)
    assert s.value(LINK) is None
    assert s.link(JOB, LINK) == ""
    assert s.value(LINK) == b"old"


def test_key_from_which_another_entry_is_worked_on_is_no_link_before_that_is_over(
    s: Subject,
) -> None:
    s.set(JOB, b"old", uri=URI, at=START)
    s.lease(timeout=5 * SECOND)
    s.set(b"plain", b"new", uri=URI, at=START + 1)
    s.delete(b"plain", at=START + 2)
    s.set(OTHER, b"other", at=START + 2)
    assert s.value(URI) is None
    assert s.link(OTHER, URI) == "worked-on"
    s.later(6 * SECOND)
    assert s.link(OTHER, URI) == ""
    assert s.value(URI) == b"other"


# --- RENAME ---------------------------------------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.parametrize(
    ("key", "to", "code"),
    [
        *((b"", MOVED, "bad-key"), (b"k" * 4097, MOVED, "bad-key"), (JOB, None, "bad-request")),
        *((JOB, b"", "bad-key"), (JOB, b"k" * 4097, "bad-key"), (JOB, JOB, "bad-key")),
        *((b"none", MOVED, "not-found"), (URI, MOVED, "bad-key")),
    ],
)
def test_rename_needs_two_keys_and_an_entry_under_its_primary_key(
    s: Subject, key: bytes, to: bytes | None, code: str
) -> None:
    s.set(JOB, uri=URI)
    assert s.rename(key, to) == code
    assert s.value(MOVED) is None


def test_value_and_all_else_is_kept(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI, kind=ValueType.STRING, at=START, timeout=START + 99 * SECOND, ttl=5)
    s.link(JOB, LINK)
    before = s.meta(JOB)
    s.later(SECOND)
    assert s.rename(JOB, MOVED, at=START + 3) == ""
    pair = s.pair(MOVED)
    assert (pair.value_type, pair.value, pair.second_key) == (ValueType.STRING, b"one", URI)
    assert [s.pair(key).second_key for key in (URI, LINK)] == [MOVED, MOVED]
    after = pair.meta
    assert (after.timestamp_us, after.modified_us) == (START + 3, s.now)
    kept = (before.created_us, before.expires_us, before.ttl_us)
    assert (after.created_us, after.expires_us, after.ttl_us) == kept
    assert s.value(JOB) is None


def test_arrival_is_kept(s: Subject) -> None:
    s.set(b"a:1:0:1")
    s.set(b"a:1:0:2")
    s.rename(b"a:1:0:1", b"a:1:0:9")
    assert s.jobs(count=2) == [b"a:1:0:9", b"a:1:0:2"]


@pytest.mark.warm_only
def test_rename_older_than_the_entry_or_not_newer_than_a_tombstone_is_stale(s: Subject) -> None:
    s.set(JOB, at=START + 5)
    assert s.rename(JOB, MOVED, at=START + 4) == "stale"
    s.delete(MOVED, at=START + 6)
    assert s.rename(JOB, MOVED, at=START + 6) == "stale"
    assert s.rename(JOB, MOVED, at=START + 7) == ""


@pytest.mark.warm_only
def test_timestamp_too_far_ahead_is_clock_skew(s: Subject) -> None:
    s.set(JOB)
    assert s.rename(JOB, MOVED, at=START + 60 * SECOND + 1) == "clock-skew"
    assert s.rename(b"none", MOVED, at=START + 60 * SECOND + 1) == "not-found"


def test_target_that_exists_is_exists_or_replaced_with_overwrite(s: Subject) -> None:
    s.set(JOB, b"one", at=START)
    s.set(OTHER, b"two", uri=URI, at=START + 5)
    assert s.rename(JOB, OTHER, at=START + 6) == "exists"
    assert s.rename(JOB, OTHER, at=START + 4, flags=Flag.OVERWRITE) == "stale"
    assert s.rename(JOB, OTHER, at=START + 4) == "exists"
    assert s.rename(JOB, OTHER, at=START + 6, flags=Flag.OVERWRITE) == ""
    assert (s.value(OTHER), s.value(JOB), s.value(URI)) == (b"one", None, None)
    assert s.jobs(count=5) == [OTHER]


def test_target_that_is_worked_on_is_not_replaced(s: Subject) -> None:
    s.set(OTHER, at=START)
    s.lease()
    s.set(JOB, at=START)
    assert s.rename(JOB, OTHER, at=START + 1) == "exists"
    assert s.rename(JOB, OTHER, at=START + 1, flags=Flag.OVERWRITE) == "worked-on"
