"""Addresses: what names a daemon, and what does not."""

from __future__ import annotations

import pytest

from fastjournal.client.core.address import TcpAddress, UnixAddress, parse_address
from fastjournal.errors import BadRequestError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9923", TcpAddress("127.0.0.1", 9923)),
        ("localhost:1", TcpAddress("localhost", 1)),
        ("host.example.org.:80", TcpAddress("host.example.org.", 80)),
        ("tls://h:1", TcpAddress("h", 1, tls=True)),
        ("tls://[::1]:1", TcpAddress("::1", 1, tls=True)),
        ("bücher.example:80", TcpAddress("bücher.example", 80)),
        ("[::1]:65535", TcpAddress("::1", 65535)),
        ("unix:/run/fastjournal/socket", UnixAddress("/run/fastjournal/socket")),
        ("unix:relative:odd", UnixAddress("relative:odd")),
    ],
)
def test_address_is_read_and_written_back(text: str, address: object) -> None:
    assert parse_address(text) == address
    assert str(parse_address(text)) == text


NO_ADDRESSES = [
    *("", "localhost", ":9923", "::1:9923", "::1", "[::1]", "[::1]9923", "[::1:9923", "a]:1"),
    *("localhost:0", "localhost:65536", "localhost:-1", "localhost:x", "localhost:²", "[]:1"),
    *(
        "tls://",
        "tls://:1",
        "tls://unix:/x",
        "https://h:1",
        "unix:",
        "unix:a\0b",
        "a..b:1",
        ".:1",
        "a" * 64 + ":1",
        "a\0b:1",
        "ü" * 64 + ":1",
    ),
]


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_address_in_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_address(text)
    assert caught.value.code == "bad-address"
    assert "HOST:PORT" in str(caught.value)
