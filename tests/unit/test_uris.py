"""Domain of a URI: host in lower case, IDNA, and its port."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal import BadRequestError, Spool, domain_of, parse_journal_key


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
        assert key is not None
        assert key.domain == b"example.org%3A8080"
        for wrong in ({}, {"uri": "page 1"}):
            with pytest.raises(BadRequestError, match="domain"):
                spool.append(**wrong)
