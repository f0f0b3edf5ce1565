"""Journal keys: what is one, what is a plain key, and the canonical form that is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal import Client, Spool, SyncClient, domain_of
from fastjournal.client.core import calls
from fastjournal.client.core.calls import bury
from fastjournal.client.core.calls.base import key_bytes
from fastjournal.client.core.worker_options import WorkerOptions, worker_options
from fastjournal.errors import BadRequestError
from fastjournal.keys import (
    JournalKey,
    build_journal_key,
    parse_journal_key,
    resource_uri,
    shown_domain,
    split_unique,
    typed_domain,
    unique_of,
    unique_uri,
)
from fastjournal.numeric import check_integer


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        (b"d:0:0:", JournalKey(b"d", 0, 0, b"")),
        (b"d:255:18446744073709551615:x", JournalKey(b"d", 255, 2**64 - 1, b"x")),
        (b"d:007:0000000000000099:a:b:c", JournalKey(b"d", 7, 99, b"a:b:c")),
        (b"\xff\0:1:2:\xfe", JournalKey(b"\xff\0", 1, 2, b"\xfe")),
    ],
)
def test_key_of_four_parts_is_a_journal_key(key: bytes, parts: JournalKey) -> None:
    assert parse_journal_key(key) == parts


@pytest.mark.parametrize(
    ("domain", "id", "priority", "at"),
    [
        ("", "x", 1, 0), ("a:b", "x", 1, 0), ("d", "x", 256, 0), ("d", "x", -1, 0),
        ("d", "x", 1, -1), ("d", "x", 1, 2**64), ("d", "x" * 4096, 1, 0), ("\udcff", "x", 1, 0),
        ("d", "\udcff", 1, 0),
    ],
)  # fmt: skip
def test_part_outside_its_bounds_is_refused(domain: str, id: str, priority: int, at: int) -> None:
    with pytest.raises(BadRequestError) as refused:
        build_journal_key(domain, id, not_before_us=at, priority=priority)
    assert refused.value.code == "bad-key"


def test_text_without_a_utf8_form_is_refused_as_a_key_and_escaped_as_a_reason() -> None:
    with pytest.raises(BadRequestError, match="character 1"):
        key_bytes("k\udcff")
    assert key_bytes(b"k\xff") == b"k\xff"
    assert bury("k", reason="why\udcff").request.value == b"why\\udcff"


def test_key_that_is_neither_text_nor_bytes_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="domain is str or bytes, not int"):
        build_journal_key(5, "id")


# --- numeric --------------------------------------------------------------------------------------
# Numeric arguments: what is no number of their kind is refused before anything is sent.


class Indexed:
    """An integer of another library, as numpy has them."""

    def __index__(self) -> int:
        return 7


def options(**fields: Any) -> WorkerOptions:
    return worker_options(**({"domain": "d", "count": 1, "lease": 1, "wait": None} | fields))


INTEGERS: dict[str, Callable[[Any], object]] = {
    "priority": lambda n: build_journal_key("d", "x", priority=n),
    "not_before_us": lambda n: build_journal_key("d", "x", not_before_us=n),
    "set timestamp": lambda n: calls.set_("k", timestamp_us=n),
    "delete token": lambda n: calls.delete("k", token=n),
    "delete timestamp": lambda n: calls.delete("k", timestamp_us=n),
    "add timestamp": lambda n: calls.add("k", timestamp_us=n),
    "flip timestamp": lambda n: calls.flip("k", timestamp_us=n),
    "truncate size": lambda n: calls.truncate("k", n),
    "truncate timestamp": lambda n: calls.truncate("k", 1, timestamp_us=n),
    "rename timestamp": lambda n: calls.rename("k", "l", timestamp_us=n),
    "next count": lambda n: calls.next_(count=n),
    "release token": lambda n: calls.release("k", n),
    "touch token": lambda n: calls.touch("k", n, ttl=1),
    "bury token": lambda n: calls.bury("k", n),
    "kick_domain count": lambda n: calls.kick_domain("d", count=n),
    "snapshot keep": lambda n: calls.snapshot(keep=n),
    "range page": lambda n: calls.range_(page=n),
    "prefix page": lambda n: calls.prefix("p", page=n),
    "regex page": lambda n: calls.regex("p", page=n),
    "jobs count": lambda n: options(count=n),
    "reply_bytes_max": lambda n: SyncClient(reply_bytes_max=n),
    "trio reply_bytes_max": lambda n: Client(reply_bytes_max=n),
}
BOOLEAN_OR_NO_NUMBER = [True, 1.0, 1.5, math.nan, math.inf, "1", b"1", [1]]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", BOOLEAN_OR_NO_NUMBER, ids=repr)
def test_number_that_is_no_integer_is_a_type_error(name: str, value: object) -> None:
    with pytest.raises(TypeError, match="is an int, not"):
        INTEGERS[name](value)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [-1, 2**64, 10**30])
def test_integer_out_of_range_is_a_bad_request(name: str, value: int) -> None:
    with pytest.raises(BadRequestError, match=r"is not \d+ to \d|is negative|after the year"):
        INTEGERS[name](value)


def test_integer_of_another_library_is_one() -> None:
    assert check_integer("n", Indexed(), 0, 9) == 7
    assert build_journal_key("d", "x", priority=Indexed()) == build_journal_key(
        "d", "x", priority=7
    )


# --- uris -----------------------------------------------------------------------------------------
# Domain of a URI: host in lower case, IDNA, and its port.


@pytest.mark.parametrize(
    ("uri", "domain"),
    [
        ("https://Example.ORG/a?b=https://other.net/", "example.org"),
        (b"http://user:secret@example.org:8080/x", "example.org%3A8080"),
        ("http://example.org.", "example.org"),
        ("http://B\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example/", "xn--bcher-kva.example"),
        ("http://[2001:DB8::1]:8080/", "2001%3Adb8%3A%3A1%3A8080"),
        ("//host/path", "host"),
        ("http://my_host-.b--c.example/", "my_host-.b--c.example"),
        ("http://192.0.2.1/", "192.0.2.1"),
    ],
)
def test_uri_has_the_domain_of_its_host(uri: str | bytes, domain: str) -> None:
    assert domain_of(uri) == domain


@pytest.mark.parametrize(
    "uri",
    ["", "page 1", "mailto:a@b.c", "http:///x", "http://h:99999/", b"http://\xff/", "http://a b/"],
)
def test_uri_without_a_host_is_refused(uri: str | bytes) -> None:
    with pytest.raises(BadRequestError, match="name the domain") as caught:
        domain_of(uri)
    assert caught.value.code == "bad-key"


@pytest.mark.parametrize(
    "host",
    ["a;reboot`id`$(x)", "a'b", "a|b", "-x", "a..b", "a%3Bb", "a&b", "a*", "[fe80::1%25;id]"],
)
def test_uri_whose_host_is_no_host_name_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="a host has letters, digits") as caught:
        domain_of(f"http://{host}/")
    assert isinstance(caught.value, BadRequestError)
    assert caught.value.code == "bad-key"


def test_spool_takes_the_domain_of_the_uri_where_none_is_named(tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as spool:
        key = parse_journal_key(spool.append(uri="https://Example.org:8080/a"))
        assert key.domain == b"example.org%3A8080"
        for wrong in ({}, {"uri": "page 1"}):
            with pytest.raises(BadRequestError, match="domain"):
                spool.append(**wrong)


# --- unique values --------------------------------------------------------------------------------
# The reserved URI ``unique:<domain>:<value>``.

PARTS = st.binary(min_size=1, max_size=40)
"""With many of the bytes that separate parts."""
AMBIGUOUS = st.lists(st.sampled_from([b":", b"unique:", b"a", b"\xff", b"%3A"]), min_size=1).map(
    b"".join
)


@given(domain=PARTS | AMBIGUOUS, value=PARTS | AMBIGUOUS)
def test_unique_value_and_its_queue_are_read_back_from_the_reserved_uri(
    domain: bytes, value: bytes
) -> None:
    if b":" in domain:
        with pytest.raises(BadRequestError, match="holds ':'"):
            unique_uri(domain, value)
        return
    uri = unique_uri(domain, value)
    assert split_unique(uri) == (domain, value)
    key = build_journal_key(domain, "id")
    assert unique_of(key, uri) == value
    assert unique_of(build_journal_key(domain + b"x", "id"), uri) is None, "of another queue"
    assert calls.set_(key, uri=uri).request.second_key == uri
    assert calls.enqueue(domain, unique=value).request.second_key == uri
    with pytest.raises(BadRequestError, match="reserved"):
        resource_uri(uri)


@pytest.mark.parametrize("domain", ["", "a:b"])
def test_unique_value_of_no_queue_is_refused(domain: str) -> None:
    with pytest.raises(BadRequestError, match="is empty or holds ':'"):
        unique_uri(domain, "7")


def test_unique_value_has_room_beside_the_name_of_its_queue() -> None:
    assert len(unique_uri("q", "v" * 4087)) == 4096
    with pytest.raises(BadRequestError, match="not 1 to 4087"):
        unique_uri("q", "v" * 4088)
    with pytest.raises(BadRequestError, match="shorter name"):
        unique_uri("q" * 4088, "v")


@pytest.mark.parametrize(
    ("key", "uri"),
    [
        ("mails:1:0:x", "unique:"),
        ("mails:1:0:x", "unique:7"),
        ("mails:1:0:x", "unique:mails:"),
        ("mails:1:0:x", "unique::7"),
        ("mails:1:0:x", b"unique:search:7"),
        ("plain", "unique:plain:7"),
        (None, "unique:mails:7"),
    ],
)
def test_set_refuses_a_reserved_uri_that_is_not_of_its_queue(
    key: str | None, uri: str | bytes
) -> None:
    queue = "<queue>" if key in ("plain", None) else "mails"
    with pytest.raises(BadRequestError, match=f"reserved for jobs: unique:{queue}:<value>") as told:
        calls.set_(key, uri=uri)
    assert (told.value.code, told.value.hint) == (
        "bad-key",
        "enqueue(queue, unique=...) builds it",
    )


@pytest.mark.parametrize(
    ("domain", "shown"),
    [
        (b"example.org%3A8080", b"example.org:8080"),
        (b"10.0.0.1%3A1", b"10.0.0.1:1"),
        (b"example.org", b"example.org"),
        (b"a%3Ab", b"a%3Ab"),
        (b"%3A80", b"%3A80"),
        (b"a%3A123456", b"a%3A123456"),
        (b"a%3A1%3A2", b"a%3A1%3A2"),
        (b"\xff%3A1", b"\xff%3A1"),
        (b"a%3A1\n", b"a%3A1\n"),
        (b"", b""),
    ],
)
def test_domain_of_a_host_with_a_port_is_shown_as_people_write_it(
    domain: bytes, shown: bytes
) -> None:
    assert shown_domain(domain) == shown
    assert typed_domain(shown) == domain


def test_domain_of_each_uri_with_a_port_is_shown_with_a_colon() -> None:
    domain = domain_of("http://Bücher.example:8080/x").encode()
    assert shown_domain(domain) == b"xn--bcher-kva.example:8080"
    assert typed_domain(b"a:b:1") == b"a:b:1"
