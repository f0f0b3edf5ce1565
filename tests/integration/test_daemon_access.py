"""TLS, tokens and unix sockets of a real daemon, with the real clients."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio

from fastjournal.client import Client, SyncClient
from fastjournal.client.core.client_credentials import make_context
from fastjournal.errors import CannotConnectError, ConfigError, RefusedError
from fastjournal.protocol import (
    Flag,
    Function,
    encode_request,
)
from fastjournald.main import main
from fastjournald.net.credentials import load_grants
from tests.certificates import LONG_AGO, Authority, Files
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build, codes, run_to_its_end, set_request
from tests.integration.worker_process import wait_until

ALL, CRAWL = "token-for-everything-0123", "token-for-crawl-4567890"


def write_tokens(directory: Path, text: str | None = None) -> Path:
    """Write a file of two tokens, one as it is and one as its hash."""
    file = directory / "tokens.toml"
    file.touch(0o600)
    file.write_text(
        text
        or f"""
[[token]]
name = "all"
token = "{ALL}"
rights = ["read", "write", "next", "admin"]
prefixes = [""]

[[token]]
name = "crawler"
token_sha256 = "{sha256(CRAWL.encode()).hexdigest()}"
rights = ["write", "next"]
prefixes = ["crawl:"]
"""
    )
    return file


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.sign("server")


def tls_options(files: Files) -> tuple[str, ...]:
    return "--tls-cert", files.cert, "--tls-key", files.key


def test_clients_work_by_tls_and_plain_ones_are_not_let_in(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    unix = f"unix:{tmp_path}/s"
    options = ("--listen", "127.0.0.1:0", "--listen", unix, *tls_options(files))
    with DaemonProcess(tmp_path, *options) as daemon:
        with SyncClient(daemon.address, tls=authority.path) as client:
            for number in range(5):
                client.set(f"big{number}", b"x" * 1_000_000)
            entries = client.request_many(
                build(Function.GET, b"big%d" % number, flags=1 << 10) for number in range(5)
            )
            assert [len((reply.pairs or [])[0].value) for reply in entries] == [1_000_000] * 5
        with SyncClient(unix) as client:
            assert client.get("big1").value == b"x" * 1_000_000
        assert daemon.stop() == 0


def test_tls_lets_in_clients_with_a_certificate_of_the_right_authority(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    other = Authority(tmp_path, "other")
    good, wrong = authority.sign("good", "client"), other.sign("wrong", "client")
    expired = authority.sign("expired", "client", not_after=LONG_AGO)
    options = (*tls_options(files), "--tls-client-ca", authority.path)
    with DaemonProcess(tmp_path, *options) as daemon:
        for own in (wrong, expired, None):
            context = make_context(authority.path, *(own or ()))
            with pytest.raises(CannotConnectError, match=r"TLS: .* alert") as caught:
                ask(daemon.address, tls=context)
            assert caught.value.code == "tls-failed"
        context = make_context(authority.path, good.cert, good.key)
        ask(daemon.address, tls=context)
        wait_until(lambda: daemon.said().count("event=tls-failed") >= 3)
        assert daemon.said().count("event=tls-failed") == 3, "each was tried once"
        assert "certificate has expired" in daemon.said()


def test_token_is_needed_and_gives_what_it_gives(tmp_path: Path) -> None:
    options = ("--auth-tokens", str(write_tokens(tmp_path)))
    with DaemonProcess(tmp_path, *options) as daemon:
        with RawClient(daemon.address) as raw:
            raw.send(
                build(Function.NOP),
                set_request(b"crawl:1:0:a"),
                build(Function.SNAPSHOT),
                build(999),
                build(Function.QUIT),
            )
            required = "auth-required"
            assert codes(raw.rest()) == ["", required, required, required, ""]
        with SyncClient(daemon.address, auth=CRAWL) as client:
            client.set("crawl:1:0:a", b"", uri="https://example.org/")
            with pytest.raises(RefusedError, match="'read'") as caught:
                client.get("crawl:1:0:a")
            assert caught.value.code == "forbidden"
            with pytest.raises(RefusedError, match="prefixes"):
                client.set("crawler:1:0:a")
            with pytest.raises(RefusedError, match="name a domain"):
                client.next()
            with pytest.raises(RefusedError, match="'admin'"):
                client.snapshot()
            with pytest.raises(RefusedError, match="'admin'"):
                client.remote_handover()
            jobs = client.next("crawl")
            client.delete(jobs.pairs[0].key, token=jobs.token)
        with SyncClient(daemon.address, auth=ALL) as client:
            assert client.stats()["entries"] == 0
            assert client.snapshot()
            with pytest.raises(RefusedError, match="no --remote-log") as caught:
                client.remote_handover()
            assert caught.value.code == "unknown-function"
        with pytest.raises(RefusedError) as caught, SyncClient(daemon.address, auth="x" * 20):
            pass
        assert caught.value.code == "auth-failed"
        with (
            SyncClient(daemon.address) as client,
            pytest.raises(RefusedError, match=r"\(auth, or FASTJOURNAL_AUTH_FILE ") as caught,
        ):
            client.set("crawl:1:0:a")
        assert caught.value.code == "auth-required"
        assert daemon.stop() == 0
    assert "event=auth-failed peer=127.0.0.1:" in daemon.said()


def ask(address: str, *, sync: bool = True, **options: Any) -> None:
    """Do something that both sides agree on."""
    if sync:
        with SyncClient(address, **options) as client:
            client.nop()
        return

    async def nop() -> None:
        async with Client(address, **options) as client:
            await client.nop()

    trio.run(nop)


def test_token_lets_a_client_in_while_strangers_hold_connections(tmp_path: Path) -> None:
    """Silent sockets, and such as ask without AUTH, fill all of max-connections."""
    options = ("--auth-tokens", str(write_tokens(tmp_path)), "--max-connections", "20")
    with (
        DaemonProcess(tmp_path, *options) as daemon,
        SyncClient(daemon.address, auth=CRAWL) as inside,
        ExitStack() as stack,
    ):
        inside.nop()
        for number in range(60):
            stranger = stack.enter_context(RawClient(daemon.address))
            if number % 2:
                stranger.send(build(Function.NOP))
        ask(daemon.address, auth=CRAWL)
        inside.nop()


def hang_up(daemon: DaemonProcess) -> None:
    """SIGHUP, and wait until the daemon has said what it made of it."""
    before = daemon.said().count("event=reload")
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: daemon.said().count("event=reload") > before)


def test_certificate_that_is_renewed_counts_after_sighup_for_new_connections(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    renewing = Authority(tmp_path, "renewed")
    with DaemonProcess(tmp_path, *tls_options(files)) as daemon:
        with SyncClient(daemon.address, tls=authority.path) as client:
            client.nop()
            renewed = renewing.sign("server")
            assert renewed == files
            ask(daemon.address, tls=authority.path)
            hang_up(daemon)
            ask(daemon.address, tls=renewing.path)
            with pytest.raises(CannotConnectError, match="certificate"):
                ask(daemon.address, tls=authority.path)
            client.nop()
        Path(files.key).write_text("no key")
        hang_up(daemon)
        assert "event=reload-failed" in daemon.said()
        ask(daemon.address, tls=renewing.path)
        Path(files.cert).unlink()
        os.mkfifo(files.cert)
        os.kill(daemon.pid, signal.SIGHUP)
        ask(daemon.address, tls=renewing.path)
        assert daemon.stop() == 0, "the reload that waits for the pipe holds up the stop"


def test_tokens_of_a_new_file_count_after_sighup_and_end_connections_of_removed_ones(
    tmp_path: Path,
) -> None:
    file = write_tokens(tmp_path)
    with DaemonProcess(tmp_path, "--auth-tokens", str(file)) as daemon:
        with (
            SyncClient(daemon.address, auth=ALL) as stays,
            RawClient(daemon.address) as goes,
        ):
            assert goes.ask(build(Function.AUTH, value=CRAWL.encode())).code == ""
            goes.send(build(Function.NEXT, b"crawl", flags=Flag.LISTEN, identifier=9))
            text = file.read_text()
            file.write_text("[[token]]\nname = 'x'")
            hang_up(daemon)
            assert "event=reload-failed" in daemon.said()
            assert goes.ask(build(Function.NOP)).code == ""
            new = "a-token-that-is-new-0815"
            file.write_text(
                text[: text.rindex("[[token]]")]
                + f"[[token]]\nname = 'new'\ntoken = '{new}'\nrights = ['next']\nprefixes = ['']\n"
            )
            hang_up(daemon)
            assert [(reply.identifier, reply.code) for reply in goes.rest()] == [
                (9, "auth-required")
            ]
            assert stays.stats()["connections"] >= 1
        ask(daemon.address, auth=new)
        with pytest.raises(RefusedError, match="no such token"):
            ask(daemon.address, auth=CRAWL)


def test_sighup_lets_count_what_can_and_names_what_cannot(tmp_path: Path) -> None:
    config = tmp_path / "fastjournald.toml"
    config.write_text("max_connections = 10\nmax_value = 1000\n")
    with DaemonProcess(tmp_path, "--config", str(config)) as daemon:
        config.write_text('max_connections = 1\nmax_value = 2000\nlog_level = "debug"\n')
        hang_up(daemon)
        assert "event=reloaded changed=log_level,max_connections" in daemon.said()
        assert "event=needs-restart options=max_value" in daemon.said()
        with RawClient(daemon.address) as first:
            assert first.ask(build(Function.NOP)).code == ""
            with RawClient(daemon.address) as second:
                assert codes(second.rest()) == ["busy"]
            assert codes([first.ask(set_request(b"k", b"x" * 1500))]) == ["too-large"]
        assert "event=connected peer=127.0.0.1" in daemon.said()
        config.write_text("max_value = 'much'\n")
        hang_up(daemon)
        assert "event=reload-failed" in daemon.said()
        config.write_text("max_connections = 1\nauth_tokens = '/nowhere'\n")
        hang_up(daemon)
        config.write_text(f"max_connections = 5\nauth_tokens = '{write_tokens(tmp_path)}'\n")
        hang_up(daemon)
        assert "needs-restart options=auth_tokens,max_value" in daemon.said()
        ask(daemon.address)
        assert daemon.stop() == 0


def has_waited(daemon: DaemonProcess, times: int) -> bool:
    return daemon.said().count("event=reload-waits") == times


def test_sighup_takes_the_place_of_a_reload_that_waits_for_a_file(tmp_path: Path) -> None:
    config = tmp_path / "fastjournald.toml"
    config.write_text("max_connections = 10\n")
    with DaemonProcess(tmp_path, "--config", str(config)) as daemon:
        config.unlink()
        os.mkfifo(config)
        for number in range(2):
            os.kill(daemon.pid, signal.SIGHUP)
            wait_until(partial(has_waited, daemon, number + 1))
        config.unlink()
        config.write_text("max_connections = 20\n")
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: "event=reloaded" in daemon.said())
        said = daemon.said()
        assert said.count("event=reload-replaced") == 2
        assert "event=reloaded changed=max_connections" in said
        assert daemon.stop() == 0


def test_client_without_auth_is_disconnected_in_time_and_one_with_it_is_not(tmp_path: Path) -> None:
    options = ("--auth-tokens", str(write_tokens(tmp_path)), "--auth-timeout", "1")
    with DaemonProcess(tmp_path, *options) as daemon, ExitStack() as stack:
        with RawClient(daemon.address) as half:
            # at once: it has a second
            half.socket.sendall(encode_request(build(Function.NOP))[:5])
            silent = stack.enter_context(RawClient(daemon.address))
            stays = stack.enter_context(RawClient(daemon.address))
            assert stays.ask(build(Function.AUTH, value=ALL.encode())).error == ""
            assert codes(silent.rest()) == ["auth-required"]
            assert codes(half.rest()) == ["auth-required"]
            # on the same connection: a client would connect again
            assert stays.ask(build(Function.NOP)).error == ""
        assert "event=auth-timeout" in daemon.said()


def test_token_is_shown_to_nobody(tmp_path: Path, authority: Authority, files: Files) -> None:
    options = ("--log-level", "debug", "--auth-tokens", str(write_tokens(tmp_path)))
    with DaemonProcess(tmp_path, *options, *tls_options(files), own_interpreter=True) as daemon:
        wrong = "some-wrong-token-4711"
        with pytest.raises(RefusedError):
            ask(daemon.address, tls=authority.path, auth=wrong)
        with SyncClient(daemon.address, tls=authority.path, auth=ALL) as client:
            client.set("k", "v")
            told = [str(client.stats()), str(client.stats("k", data=True))]
        hang_up(daemon)
        told.append(Path(f"/proc/{daemon.pid}/cmdline").read_text())
        told.append(Path(f"/proc/{daemon.pid}/environ").read_text())
        assert daemon.stop() == 0
        told.append(daemon.said())
        hashes = [sha256(token.encode()).hexdigest() for token in (ALL, CRAWL)]
        for secret in (ALL, CRAWL, wrong, *hashes):
            assert not any(secret in text for text in told)


def test_socket_of_unix_has_its_mode_and_its_peers_are_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    options = ("--listen", f"unix:{path}", "--socket-mode", "0600")
    with DaemonProcess(tmp_path, *options) as daemon:
        assert path.stat().st_mode & 0o7777 == 0o600
        ask(daemon.address)
        wait_until(lambda: f"pid={os.getpid()} uid={os.getuid()}" in daemon.said())


def test_tokens_are_needed_by_a_unix_socket_too(tmp_path: Path) -> None:
    options = ("--listen", f"unix:{tmp_path}/s", "--auth-tokens", str(write_tokens(tmp_path)))
    with DaemonProcess(tmp_path, *options) as daemon:
        with pytest.raises(RefusedError, match="AUTH"), SyncClient(daemon.address) as client:
            client.get("k")
        ask(daemon.address, auth=ALL)


REFUSED_STARTS: dict[str, tuple[tuple[str, ...], str]] = {
    "exposed": (("--listen", "0.0.0.0:0"), "--insecure"),
    "exposed by IPv6": (("--listen", "[::]:0"), "--insecure"),
    "exposed by name": (("--listen", "some.example:1"), "--insecure"),
    "a path that is too long": (("--listen", "unix:/" + "x" * 107), "107"),
    "no path": (("--listen", "unix:"), "--listen"),
    "no port": (("--listen", "127.0.0.1:x"), "--listen"),
    "a certificate without key": (("--tls-cert", "/x"), "--tls-key"),
    "a key without certificate": (("--tls-key", "/x"), "--tls-cert"),
    "authorities without a certificate": (("--tls-client-ca", "/x"), "--tls-cert"),
    "tokens that are not there": (("--auth-tokens", "/nowhere/x"), "/nowhere/x"),
}


@pytest.mark.parametrize("name", ["exposed", "tokens that are not there"])
def test_config_that_would_let_everybody_in_or_names_no_file_stops_the_start(
    tmp_path: Path, name: str
) -> None:
    options, words = REFUSED_STARTS[name]
    code, said = run_to_its_end(tmp_path, *options)
    assert code == 64, said
    assert words in said
    assert "Traceback" not in said


def test_config_check_refuses_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in REFUSED_STARTS.values():
        with pytest.raises(SystemExit) as ended:
            main(["--cmdlog-path", str(tmp_path), "--check-config", *options])
        assert ended.value.code == 64
        assert words in capsys.readouterr().err


def test_address_of_other_machines_can_be_listened_on_where_that_is_meant(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    for options, words in (
        (("--insecure",), "may do everything"),
        (tls_options(files), "may do everything"),
        (("--auth-tokens", str(write_tokens(tmp_path))), "no TLS"),
        (("--auth-tokens", str(write_tokens(tmp_path)), *tls_options(files)), ""),
    ):
        with DaemonProcess(tmp_path, "--listen", "0.0.0.0:0", *options) as daemon:
            assert daemon.stop() == 0
            assert ("event=risk" in daemon.said()) == bool(words)
            assert words in daemon.said()
        daemon.stderr_path.unlink()


def test_config_check_runs_beside_a_running_daemon(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    tokens = write_tokens(tmp_path)
    options = ("--auth-tokens", str(tokens), *tls_options(files))
    with DaemonProcess(tmp_path, *options):
        code, said = run_to_its_end(tmp_path, "--check-config", *options)
        assert (code, said) == (0, "ok\n")
    other = authority.sign("other")
    Path(files.key).write_bytes(Path(other.key).read_bytes())
    tokens.chmod(0o644)
    code, said = run_to_its_end(
        tmp_path, "--check-config", *options, "--listen", f"unix:{tmp_path}/missing/socket"
    )
    assert code == 64
    assert len(said.splitlines()) == 3
    assert "chmod 600" in said
    assert "key values mismatch" in said
    assert "missing" in said


BAD_TOKENS = {
    "a short token": "name='a'\ntoken='short-one'\nrights=['read']\nprefixes=['']",
    "both": f"name='a'\ntoken='{ALL}'\ntoken_sha256='{'0' * 64}'\nrights=[]\nprefixes=['']",
    "neither": "name='a'\nrights=['read']\nprefixes=['']",
    "no hash": "name='a'\ntoken_sha256='abc'\nrights=['read']\nprefixes=['']",
    "no such right": f"name='a'\ntoken='{ALL}'\nrights=['root']\nprefixes=['']",
    "no prefixes": f"name='a'\ntoken='{ALL}'\nrights=['read']\nprefixes=[]",
    "an unknown name": f"name='a'\ntoken='{ALL}'\nrights=[]\nprefixes=['']\nuser='x'",
    "a bad name": f"name='a b'\ntoken='{ALL}'\nrights=[]\nprefixes=['']",
    "not TOML": f"name='a'\ntoken={ALL}\n",
    "a number of many digits": f"name='a'\ntoken='{ALL}'\nrights={'1' * 5000}",
    "nested too deep": f"name='a'\ntoken='{ALL}'\nrights={'[' * 5000}",
    "the same twice": f"name='a'\ntoken='{ALL}'\nrights=[]\nprefixes=['']\n[[token]]\n"
    f"name='b'\ntoken='{ALL}'\nrights=[]\nprefixes=['']",
    "one name twice": f"name='a'\ntoken='{ALL}'\nrights=[]\nprefixes=['']\n[[token]]\n"
    f"name='a'\ntoken='{CRAWL}'\nrights=[]\nprefixes=['']",
}


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_token_file_that_is_bad_is_refused_without_showing_its_content(
    tmp_path: Path, name: str
) -> None:
    file = write_tokens(tmp_path, f"[[token]]\n{BAD_TOKENS[name]}\n")
    with pytest.raises(ConfigError) as caught:
        load_grants(str(file))
    assert str(file) in str(caught.value)
    assert ALL not in str(caught.value)
    assert "short-one" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("rihgts=[]", "rights"),
        ("rights=['Write ']", "write"),
        ("rights=[]\nprefix=['']", "prefixes"),
    ],
)
def test_token_file_with_a_mistyped_name_is_told_the_right_one(
    tmp_path: Path, text: str, meant: str
) -> None:
    file = write_tokens(tmp_path, f"[[token]]\nname='a'\ntoken='{ALL}'\n{text}\n")
    with pytest.raises(ConfigError, match=rf"did you mean {meant}\?"):
        load_grants(str(file))


@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_token_file_that_others_have_access_to_is_refused(tmp_path: Path, mode: int) -> None:
    file = write_tokens(tmp_path)
    assert load_grants(str(file)).find(CRAWL.encode()) is not None
    file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_grants(str(file))
