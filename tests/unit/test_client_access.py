"""How clients are let in: TLS, AUTH before all else, and what they say where it fails."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.pretty import pretty_repr

from fastjournal.client import Client, Reconnect, SyncClient
from fastjournal.client.core.address import TcpAddress, UnixAddress, parse_address, parse_servers
from fastjournal.client.core.client_credentials import (
    make_context,
    make_credentials,
    read_auth_file,
)
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    ConfigError,
    FastjournalError,
    RefusedError,
)
from fastjournal.protocol import Function, Reply, Request
from fastjournal.testing.scripted_daemon import Do, ScriptedDaemon
from tests.certificates import LONG_AGO, Authority

TOKEN = "a-token-that-nobody-guesses"
IMPATIENT = Reconnect(first_pause=0.001, longest_pause=0.01, patience=0.3)
"""Policy for daemons that never let a client in, after some tries."""


def nop_sync(address: str, **options: Any) -> None:
    with SyncClient(address, **options) as client:
        client.nop()


def nop_trio(address: str, **options: Any) -> None:
    async def nop() -> None:
        async with Client(address, **options) as client:
            await client.nop()

    trio.run(nop)


Ask = Callable[..., None]
both = pytest.mark.parametrize("ask", [nop_sync, nop_trio])


def answer(request: Request) -> list[Reply | bytes | Do]:
    """Take one token."""
    if request.function == Function.AUTH and request.value != TOKEN.encode():
        return [Reply(identifier=request.identifier, error="auth-failed not that one"), Do.CLOSE]
    return [Reply(identifier=request.identifier)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@both
def test_daemon_that_proves_itself_is_spoken_to_by_tls(ask: Ask, authority: Authority) -> None:
    with ScriptedDaemon(answer, tls=authority.server_context()) as daemon:
        ask(daemon.address, tls=authority.path)
        ask(f"tls://{daemon.address}", tls=make_context(authority.path))
        assert [request.function for request in daemon.requests] == [Function.NOP] * 2


@both
def test_daemon_that_does_not_prove_itself_is_told_nothing(
    ask: Ask, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    with ScriptedDaemon(answer, tls=authority.server_context()) as daemon:
        for options in ({"tls": other.path}, {"tls": True}):
            with pytest.raises(CannotConnectError, match="certificate is refused") as caught:
                ask(daemon.address, auth=TOKEN, **options)
            assert caught.value.code == "tls-failed"
        with pytest.raises(CannotConnectError, match="certificate is refused"):
            ask(f"tls://{daemon.address}", auth=TOKEN)
    with ScriptedDaemon(answer, tls=authority.server_context("elsewhere.example")) as daemon:
        with pytest.raises(CannotConnectError, match=r"(?i)mismatch|not valid for"):
            ask(daemon.address, tls=authority.path, auth=TOKEN)
        assert not daemon.requests


@both
def test_plain_to_tls_and_tls_to_plain_are_told_apart_from_a_lost_daemon(
    ask: Ask, authority: Authority
) -> None:
    with (
        ScriptedDaemon(answer) as daemon,
        pytest.raises(CannotConnectError, match="connect without tls://"),
    ):
        ask(daemon.address, tls=authority.path)
    with ScriptedDaemon(answer, tls=authority.server_context()) as daemon:
        with pytest.raises(FastjournalError):
            ask(daemon.address, reconnect=IMPATIENT)
        with pytest.raises(CannotConnectError):
            ask(daemon.address, auth=TOKEN, reconnect=IMPATIENT)


@both
def test_connection_that_is_cut_off_is_no_end(ask: Ask, authority: Authority) -> None:
    def cut(_request: Request) -> list[Reply | bytes | Do]:
        return [Do.CLOSE]

    with (
        ScriptedDaemon(cut, tls=authority.server_context()) as daemon,
        pytest.raises(CannotConnectError) as caught,
    ):
        ask(daemon.address, tls=authority.path)
    assert caught.value.code == "connection-lost"


@both
def test_auth_comes_first_and_anew_at_every_connect(ask: Ask, authority: Authority) -> None:
    with ScriptedDaemon(answer, tls=authority.server_context()) as daemon:
        for _ in range(2):
            ask(daemon.address, tls=authority.path, auth=TOKEN)
        assert [(request.function, request.value) for request in daemon.requests] == [
            (Function.AUTH, TOKEN.encode()),
            (Function.NOP, b""),
        ] * 2
    with ScriptedDaemon(answer) as daemon:
        ask(daemon.address, auth=TOKEN.encode())
        assert daemon.requests[0].function == Function.AUTH


def test_auth_comes_first_after_a_connection_was_lost() -> None:
    with ScriptedDaemon(answer) as daemon, SyncClient(daemon.address, auth=TOKEN) as client:
        daemon.drop_connections()
        client.nop()
        assert [request.function for request in daemon.requests[-2:]] == [
            Function.AUTH,
            Function.NOP,
        ]


@both
def test_auth_with_a_wrong_token_is_auth_failed_and_does_not_show_it(ask: Ask) -> None:
    with ScriptedDaemon(answer) as daemon, pytest.raises(RefusedError) as caught:
        ask(daemon.address, auth="some-other-token")
    assert caught.value.code == "auth-failed"
    assert caught.value.address == daemon.address
    assert "some-other-token" not in str(caught.value)


@both
def test_daemon_that_has_no_room_is_no_wrong_token(ask: Ask) -> None:
    def full(_request: Request) -> list[Reply | bytes | Do]:
        return [Reply(identifier=0, error="busy the daemon has max-connections clients"), Do.CLOSE]

    with ScriptedDaemon(full) as daemon:
        with pytest.raises(CannotConnectError) as caught:
            ask(daemon.address, auth=TOKEN, reconnect=IMPATIENT)
        assert daemon.connections > 1
    assert caught.value.code == "busy"


@both
def test_daemon_that_closes_or_says_nothing_at_auth_cannot_be_connected_to(ask: Ask) -> None:
    with (
        ScriptedDaemon(lambda _request: [Do.CLOSE]) as daemon,
        pytest.raises(CannotConnectError, match="closed"),
    ):
        ask(daemon.address, auth=TOKEN)
    with (
        ScriptedDaemon(lambda _request: []) as daemon,
        pytest.raises(CannotConnectError, match="cannot connect"),
    ):
        ask(daemon.address, auth=TOKEN, connect_timeout=0.05)


def test_large_values_go_through_tls_both_ways(authority: Authority) -> None:
    from fastjournal.protocol import Pair

    def echo(request: Request) -> list[Reply | bytes | Do]:
        pair = Pair(request.key, 1, request.value)
        return [Reply(identifier=request.identifier, pairs=[pair])]

    with (
        ScriptedDaemon(echo, tls=authority.server_context()) as daemon,
        SyncClient(daemon.address, tls=authority.path) as client,
    ):
        requests = [
            Request(function=Function.SET, key=b"k", value_type=1, value=bytes([n]) * 900_000)
            for n in range(20)
        ]
        for sent, reply in zip(requests, client.request_many(requests), strict=True):
            assert reply.pairs is not None
            assert reply.pairs[0].value == sent.value


def test_token_is_bounded_and_stands_in_no_representation() -> None:
    for bad in ("", b"", "x" * 1025):
        with pytest.raises(BadRequestError):
            SyncClient(auth=bad)
    credentials = make_credentials(auth=TOKEN)
    assert TOKEN not in repr(credentials)
    # as a traceback of rich shows local variables
    assert TOKEN not in pretty_repr(credentials)


def test_file_of_authorities_that_is_none_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for path in (bad, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError) as caught:
            SyncClient(tls=path)
        assert caught.value.path == str(path)


def test_key_of_a_client_fits_its_certificate_and_has_no_passphrase(
    authority: Authority, tmp_path: Path
) -> None:
    one, other = authority.sign("one"), authority.sign("other")
    assert make_context(authority.path, one.cert, one.key)
    with pytest.raises(ConfigError, match="cannot be used"):
        make_context(authority.path, one.cert, other.key)
    with pytest.raises(ConfigError, match="without its certificate"):
        make_context(authority.path, None, one.key)


def test_certificate_without_its_key_names_the_file_and_what_it_lacks(
    authority: Authority, tmp_path: Path
) -> None:
    one = authority.sign("one")
    bad = tmp_path / "bad.pem"
    bad.write_text("neither")
    for cert, key, path, lack in (
        (one.cert, None, one.cert, "not its private key (name the file of its key: --tls-key)"),
        (one.key, one.key, one.key, "has no certificate in PEM form"),
        (str(bad), None, str(bad), "has no certificate in PEM form"),
        (one.cert, one.cert, one.cert, "has no private key in PEM form"),
        (one.cert, str(bad), str(bad), "has no private key in PEM form"),
    ):
        with pytest.raises(ConfigError) as caught:
            make_context(authority.path, cert, key)
        assert caught.value.path == path
        assert lack in str(caught.value)


def test_file_of_a_token_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"\n {TOKEN}\n")
    file.chmod(0o600)
    assert read_auth_file(file) == TOKEN.encode()
    for mode in (0o640, 0o604, 0o620, 0o602, 0o610):
        file.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600") as caught:
            read_auth_file(file)
        assert TOKEN not in str(caught.value)
    file.chmod(0o600)
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="no token"):
        read_auth_file(file)
    file.write_text("x" * 5000)
    with pytest.raises(ConfigError, match="bytes"):
        read_auth_file(file)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError):
            read_auth_file(path)


# --- TLS that is refused --------------------------------------------------------------------------
# TLS refusals are final: they come at every connect, so clients say so at once and retry never.


QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=5)
"""Long enough for hundreds of tries, where they are made."""


class Scene:
    """A daemon that speaks TLS, a client that it takes, and ways to come to grief."""

    def __init__(self, directory: Path, version: ssl.TLSVersion) -> None:
        self.ours = Authority(directory)
        self.other = Authority(directory, "other")
        self.server = self.ours.server_context()
        self.server.load_verify_locations(self.ours.path)
        self.server.verify_mode = ssl.CERT_REQUIRED
        self._version = version
        self.good = self.context(self.ours.sign("good", "client"))

    def context(self, own: Any = (), *, trusted: Authority | None = None) -> ssl.SSLContext:
        context = make_context((trusted or self.ours).path, *own)
        context.maximum_version = self._version
        return context

    def foreign(self) -> ssl.SSLContext:
        return self.context(self.other.sign("wrong", "client"))

    def expired(self) -> ssl.SSLContext:
        return self.context(self.ours.sign("expired", "client", not_after=LONG_AGO))

    def none(self) -> ssl.SSLContext:
        return self.context()


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    return Scene(tmp_path, request.param)


def use_sync(address: str, between: Callable[[], object] | None = None, **options: Any) -> None:
    with SyncClient(address, reconnect=QUICK, **options) as client:
        client.nop()
        if between is not None:
            between()
            client.set("k", b"v")


def use_trio(address: str, between: Callable[[], object] | None = None, **options: Any) -> None:
    async def use() -> None:
        async with Client(address, reconnect=QUICK, **options) as client:
            await client.nop()
            if between is not None:
                between()
                await client.set("k", b"v")

    trio.run(use)


def listen(address: str, between: Callable[[], object] | None = None, **options: Any) -> None:
    with SyncClient(address, reconnect=QUICK, **options).listen("k") as changes:
        if between is not None:
            between()
        changes.wait()


Use = Callable[..., None]
everyone = pytest.mark.parametrize("use", [use_sync, use_trio, listen])


@contextmanager
def refused(daemon: ScriptedDaemon, match: str, hint: str) -> Iterator[None]:
    """One connection is made, and its failure says what to do."""
    before = daemon.connections
    with pytest.raises(CannotConnectError, match=match) as caught:
        yield
    assert caught.value.code == "tls-failed"
    assert hint in str(caught.value.hint)
    assert not caught.value.maybe_done
    assert daemon.connections == before + 1


@everyone
@pytest.mark.parametrize("kind", [Scene.foreign, Scene.expired, Scene.none])
def test_client_certificate_that_is_refused_is_tried_once(
    scene: Scene, use: Use, kind: Callable[[Scene], ssl.SSLContext]
) -> None:
    with (
        ScriptedDaemon(answer, tls=scene.server) as daemon,
        refused(daemon, "TLS: .*alert", "a certificate"),
    ):
        use(daemon.address, tls=kind(scene))


@everyone
def test_daemon_without_tls_is_tried_once(scene: Scene, use: Use) -> None:
    with (
        ScriptedDaemon(answer) as daemon,
        refused(daemon, "TLS: wrong version", "connect without tls://"),
    ):
        use(daemon.address, tls=scene.good)


@pytest.mark.parametrize("use", [use_sync, use_trio])
def test_certificate_that_is_refused_on_reconnect_is_tried_once(scene: Scene, use: Use) -> None:
    with ScriptedDaemon(answer, tls=scene.server) as daemon:

        def revoke() -> None:
            scene.server.load_cert_chain(*scene.other.sign("changed"))
            daemon.drop_connections()

        with pytest.raises(CannotConnectError) as caught:
            use(daemon.address, revoke, tls=scene.good)
        assert caught.value.code == "tls-failed"
        assert daemon.connections == 2


# --- addresses -------------------------------------------------------------------------------
# Addresses: what names a daemon, and what does not.


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
    *("tls://", "tls://:1", "tls://unix:/x", "https://h:1", "unix:", "unix:a\0b", "a..b:1"),
    *(".:1", "a" * 64 + ":1", "a\0b:1", "ü" * 64 + ":1"),
]


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_address_in_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_address(text)
    assert caught.value.code == "bad-address"
    assert "HOST:PORT" in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "written"),
    [
        (["h:1"], "h:1"),
        (["a:1,b:2, [::1]:3,unix:/run/socket"], "a:1,b:2,[::1]:3,unix:/run/socket"),
        (["tls://a:1,unix:/run/socket", "tls://b:1"], "tls://a:1,unix:/run/socket,tls://b:1"),
    ],
)
def test_list_of_addresses_is_read_and_written_back(texts: list[str], written: str) -> None:
    servers = parse_servers(*texts)
    assert str(servers) == written
    assert len(servers) == written.count(",") + 1


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([""], "'' is no address"),
        (["a:1,"], "'a:1,' has an empty address: a comma too many"),
        ([",a:1"], "an empty address"),
        (["a:1,,b:2"], "an empty address"),
        (["a:1", ""], "an empty address"),
        (["a:1,b:2,a:1"], "'a:1' is there twice"),
        (["unix:/a", "unix:/a"], "'unix:/a' is there twice"),
        (["a:1, tls://b:1"], "'a:1,tls://b:1' has tls:// at some addresses only"),
        (["a:1,nowhere"], "'nowhere' is no address"),
        (["a:1;b:2"], "'a:1;b:2' is no address"),
        (["a:1 b:2"], "'a:1 b:2' is no address"),
    ],
)
def test_list_of_addresses_is_refused_with_what_is_wrong(texts: list[str], named: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_servers(*texts)
    assert caught.value.code == "bad-address"
    assert named in str(caught.value)


@pytest.mark.parametrize("text", ["127.0.0.1", "localhost", "tls://db.example"])
def test_address_without_its_port_is_shown_with_one(text: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_address(text)
    assert str(caught.value) == f"{text!r} is no address: write HOST:PORT (as in {text}:9923)"
