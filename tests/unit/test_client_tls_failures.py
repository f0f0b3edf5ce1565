"""TLS refusals are final: they come at every connect, so clients say so at once and retry never."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from fastjournal.client import Client, Reconnect, SyncClient
from fastjournal.client.core.client_credentials import make_context
from fastjournal.errors import CannotConnectError
from fastjournal.protocol import Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.certificates import LONG_AGO, Authority

QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=5)
"""Long enough for hundreds of tries, where they are made."""


def answer(request: Request) -> Answer:
    return [Reply(request.identifier)]


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

    def distrustful(self) -> ssl.SSLContext:
        return self.context(self.ours.sign("own", "client"), trusted=self.other)


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
def test_daemon_certificate_that_is_refused_is_tried_once(scene: Scene, use: Use) -> None:
    with (
        ScriptedDaemon(answer, tls=scene.server) as daemon,
        refused(daemon, "the daemon's certificate is refused: .*certificate", "authority"),
    ):
        use(daemon.address, tls=scene.distrustful())
    scene.ours.ca.issue_cert("elsewhere.example").configure_cert(scene.server)
    with (
        ScriptedDaemon(answer, tls=scene.server) as daemon,
        refused(daemon, "the daemon's certificate is refused: .*127.0.0.1", "name"),
    ):
        use(daemon.address, tls=scene.good)


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
