"""Programs and clients, as installed, through mutual TLS and with tokens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from fastjournal.client import SyncClient
from fastjournal.client.core.client_credentials import make_context
from fastjournal.spool import Spool
from tests.certificates import Authority, Files
from tests.integration.cli_process import Cli
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import http_address
from tests.integration.programs import Program, installed
from tests.integration.worker_process import results


class SecureSite(NamedTuple):
    """A daemon that lets in who has a certificate and a token, and both."""

    directory: Path
    daemon: DaemonProcess
    authority: Authority
    own: Files
    token: Path

    def options(self) -> list[str]:
        """Command-line options for the programs."""
        return [
            *("--tls-ca", self.authority.path, "--tls-cert", self.own.cert),
            *("--tls-key", self.own.key, "--auth-file", str(self.token)),
        ]

    def client(self) -> SyncClient:
        """Return a client that is let in."""
        context = make_context(self.authority.path, *self.own)
        return SyncClient(self.daemon.address, tls=context, auth=self.token.read_text().strip())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SecureSite]:
    authority = Authority(tmp_path)
    server, own = authority.sign("server"), authority.sign("own", "client")
    token = tmp_path / "token"
    made = Cli(tmp_path, None)("token", "new", str(token))
    assert made.returncode == 0, made.stderr
    assert token.stat().st_mode & 0o7777 == 0o600
    assert token.read_bytes().strip() not in made.stdout
    assert Cli(tmp_path, None)("token", "new", str(token)).returncode == 2
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    tokens.write_text(
        f"[[token]]\nname = 'worker'\n{made.stdout.decode()}"
        "rights = ['read', 'write', 'next']\nprefixes = ['work:', 'plain']\n"
    )
    daemon = DaemonProcess(
        tmp_path,
        *("--tls-cert", server.cert, "--tls-key", server.key),
        *("--tls-client-ca", authority.path, "--auth-tokens", str(tokens)),
    )
    with daemon:
        yield SecureSite(tmp_path, daemon, authority, own, token)


def by_environment(site: SecureSite) -> Cli:
    """Return a command line that is let in by variables."""
    cli = Cli(site.directory, site.daemon.address)
    names = ("TLS_CA", "TLS_CERT", "TLS_KEY", "AUTH_FILE")
    for name, path in zip(names, site.options()[1::2], strict=True):
        cli.environment[f"FASTJOURNAL_{name}"] = path
    return cli


def by_file(site: SecureSite, *, token: str) -> Cli:
    """Return a command line that is let in by its client.toml, without any variable."""
    file = site.directory / "config" / "fastjournal" / "client.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"server = '{site.daemon.address}'\ntls_ca = '{site.authority.path}'\n"
        f"tls_cert = '{site.own.cert}'\ntls_key = '{site.own.key}'\nauth_file = '{token}'\n"
    )
    return Cli(site.directory, None)


def test_cli_reads_tls_and_token_from_options_environment_and_file(site: SecureSite) -> None:
    cli = Cli(site.directory, site.daemon.address)
    options = site.options()
    assert cli("set", "plain", "1", *options).returncode == 0
    assert cli(*options, "get", "plain").returncode == 0
    assert cli("get", "plain").returncode == 69
    without_token = cli(*options[:-2], "get", "plain")
    assert without_token.returncode == 1
    assert b"auth-required" in without_token.stderr
    forbidden = cli("get", "other", *options)
    assert forbidden.returncode == 1
    assert b"forbidden" in forbidden.stderr
    assert by_environment(site)("get", "plain").returncode == 0
    cli = by_file(site, token=str(site.token))
    assert cli("get", "plain").returncode == 0
    # what the file says is for its own server: another one is not told the token
    other = cli("get", "plain", "--server", f"tls://{site.daemon.address}")
    assert other.returncode == 69
    assert b"certificate" in other.stderr


CLIENTS = {
    "sync": "from fastjournal import SyncClient\n"
    "import sys\n"
    "with SyncClient(*sys.argv[1:], reconnect=None) as client:\n"
    "    print(client.get('plain').value.decode())\n",
    "asyncio": "import asyncio, sys\n"
    "from fastjournal import Client\n"
    "async def main():\n"
    "    async with Client(*sys.argv[1:], reconnect=None) as client:\n"
    "        print((await client.get('plain')).value.decode())\n"
    "asyncio.run(main())\n",
}
"""Programs that name no daemon; the first argument does, if there is one."""


@pytest.mark.parametrize("kind", CLIENTS)
def test_settings_let_a_client_in_that_names_no_daemon(site: SecureSite, kind: str) -> None:
    with site.client() as client:
        client.set("plain", "seen")

    def run(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", CLIENTS[kind], *arguments],
            env=cli.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    for cli in (by_environment(site), by_file(site, token=str(site.token))):
        done = run(cli)
        assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr
        # a daemon that the program names is told nothing of theirs
        stranger = run(cli, site.daemon.address)
        assert stranger.returncode == 1
        assert "takes TLS only" in stranger.stderr
    # nor is one of the environment told what the file has for its own
    other = by_file(site, token=str(site.token))
    other.environment["FASTJOURNAL_SERVER"] = site.daemon.address
    assert "takes TLS only" in run(other).stderr
    # a part of the settings is named, the file has the rest
    for name, wrong in (("SERVER", "here"), ("AUTH_FILE", "/no/token"), ("TLS_CA", "/no/ca")):
        cli = by_file(site, token=str(site.token))
        cli.environment[f"FASTJOURNAL_{name}"] = wrong
        said = run(cli).stderr.splitlines()[-1]
        assert "ConfigError" in said
        assert f"FASTJOURNAL_{name}" in said
        assert wrong in said
    (site.directory / "config/fastjournal/client.toml").write_text("auth_file = '/no/token'")
    said = run(Cli(site.directory, None)).stderr.splitlines()[-1]
    assert "/no/token: cannot read: No such file or directory (named by auth_file of /" in said


def test_forwarder_without_server_takes_that_of_the_settings(site: SecureSite) -> None:
    for number, cli in enumerate((by_environment(site), by_file(site, token=str(site.token)))):
        spool = site.directory / f"spool-{number}"
        with Spool(spool) as writer:
            writer.append(domain="work", uri=f"https://example.org/{number}", value="1")
        command = [installed("fj-forwarder"), "--spool", str(spool), "--once"]
        done = subprocess.run(command, env=cli.environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        with site.client() as client:
            assert client.stats("work")["entries"] == number + 1
    file = site.directory / "config/fastjournal/client.toml"
    file.write_text("server = 'nowhere'\n")
    done = subprocess.run(command, env=cli.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert f"fj-forwarder: {file}: 'nowhere' is no address" in done.stderr


def test_command_of_a_worker_reaches_the_daemon_however_the_worker_was_let_in(
    site: SecureSite,
) -> None:
    relative = os.path.relpath(site.token)
    cases = (
        (Cli(site.directory, site.daemon.address), [*site.options()[:-1], relative]),
        (by_environment(site), []),
        (by_file(site, token=relative), []),
    )
    command = f"cd / && '{installed('fj-cli')}' set \"plain $FASTJOURNAL_ID\" done && env"
    secret = site.token.read_bytes().strip()
    with site.client() as client:
        for number, (cli, options) in enumerate(cases):
            client.set(f"work:1:0:{number}", "")
            done = cli("next", "work", "--json", *options, "--exec", "sh", "-c", command)
            assert results(done.stderr) == ["done"], done.stderr
            assert client.get(f"plain {number}").value == b"done"
            assert b"FASTJOURNAL_AUTH_FILE=/" in done.stdout
            assert secret not in done.stdout, "the token itself is in the environment"


def test_token_or_file_that_is_wrong_is_said_without_the_token(site: SecureSite) -> None:
    cli = Cli(site.directory, site.daemon.address)
    site.token.write_text("wrong-token-0123456789")
    failed = cli("get", "plain", *site.options())
    assert failed.returncode == 1
    assert b"auth-failed" in failed.stderr
    assert b"give the token that the daemon knows: --auth-file" in failed.stderr
    site.token.chmod(0o644)
    refused = cli("get", "plain", *site.options())
    assert refused.returncode == 2
    assert b"chmod 600" in refused.stderr
    assert b"wrong-token" not in failed.stderr + refused.stderr


def test_program_that_is_not_let_in_says_what_to_write(site: SecureSite) -> None:
    stranger = Authority(site.directory, "stranger")
    trusted, own = ("--tls-ca", site.authority.path), site.options()
    foreign = stranger.sign("foreign", "client")
    wrong_own = ("--tls-cert", foreign.cert, "--tls-key", foreign.key)
    secure, cli = site.daemon.address, Cli(site.directory, None)
    other = site.directory / "other"
    other.mkdir()
    with DaemonProcess(other, "--http", "127.0.0.1:0") as plain:
        host, http_port = http_address(plain)
        cases: list[tuple[str, Sequence[str], int, str]] = [
            (secure, (), 69, "takes TLS only: write it as tls://HOST:PORT"),
            (f"tls://{secure}", (), 69, "trust its authority (--tls-ca)"),
            (secure, ("--tls-ca", stranger.path), 69, "trust its authority (--tls-ca)"),
            (
                secure,
                trusted,
                69,
                "give a valid one of an authority that the daemon trusts: --tls-c",
            ),
            (secure, (*trusted, *wrong_own), 69, "that the daemon trusts: --tls-cert, --tls-key"),
            (secure, own[:-2], 1, "give the token that the daemon knows: --auth-file"),
            (f"tls://{plain.address}", (), 69, "connect without tls:// and without TLS options"),
            (f"{host}:{http_port}", (), 69, "connect to an address of --listen"),
            (f"unix:{other}/none", (), 69, "check that fastjournald is running there"),
            (f"http://{plain.address}", (), 2, "write HOST:PORT, [::1]:PORT, tls://HOST:PORT or"),
        ]
        # at once: some wait seconds for an answer that the other side never gives
        with ThreadPoolExecutor(len(cases)) as pool:
            ends = [
                pool.submit(cli, "get", "plain", "--server", address, *options)
                for address, options, _, _ in cases
            ]
        for (address, _, code, advice), end in zip(cases, ends, strict=True):
            refused = end.result()
            assert refused.returncode == code, (address, refused.stderr)
            assert advice in refused.stderr.decode(), (address, refused.stderr)
    with Spool(site.directory / "spool") as writer:
        writer.append(domain="work", value="1")
    line = [installed("fj-forwarder"), "--spool", str(site.directory / "spool"), "--server"]
    for address, event, advice in (
        (secure, "closed by the daemon", "takes TLS only: write it as tls://HOST:PORT"),
        (f"tls://{secure}", "certificate is refused", "trust its authority (--tls-ca)"),
    ):
        with Program([*line, address], stderr=subprocess.PIPE, text=True) as process:
            said = next(line for line in process.stderr if event in line)
            process.kill()
        assert advice in said


def test_forwarder_delivers_through_it_and_takes_a_renewed_token(site: SecureSite) -> None:
    spool = site.directory / "spool"
    with Spool(spool) as writer:
        writer.append(domain="work", uri="https://example.org/1", value="1")
        writer.append(domain="other", uri="https://example.org/2", value="2")
        writer.append(domain="work", uri="https://example.org/3", value="3")
    right = site.token.read_text()
    site.token.write_text("wrong-token-0123456789")
    command = [
        *(installed("fj-forwarder"), "--spool", str(spool), "--server", site.daemon.address),
        *site.options(),
    ]
    process = Program(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        while "auth-failed" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        site.token.write_text(right)
        # a record that is forbidden waits; the others do not
        while "connected" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        with site.client() as client:
            while client.stats("work")["entries"] < 2:
                time.sleep(0.01)
    finally:
        process.terminate()
        assert process.wait(START_S) == 0
        rest = process.stderr.read() if process.stderr else ""
        if process.stderr:
            process.stderr.close()
    assert right.strip() not in said + rest
    assert "wrong-token" not in said + rest


def test_purge_that_does_not_ask_needs_the_right_write_only(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    tokens.write_text(
        "[[token]]\nname = 'cleaner'\ntoken = 'cleaner-token-0123456789'\nrights = ['write']\n"
        "prefixes = ['d']\n"
    )
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("cleaner-token-0123456789")
    with DaemonProcess(tmp_path, "--auth-tokens", str(tokens)) as daemon:
        cli = Cli(tmp_path, daemon.address)
        access = ("--auth-file", str(secret))
        assert cli(*access, "set", "d:1:0:x", "v").returncode == 0
        asked = cli(*access, "purge", "d")
        assert (asked.returncode, b"forbidden" in asked.stderr) == (1, True)
        assert cli(*access, "purge", "d", "--yes").returncode == 0
        refused = cli(*access, "purge", "a:b", "--yes")
        assert (refused.returncode, b"DATA" in refused.stderr) == (1, False)


def test_tasks_and_their_worker_are_let_in_by_variables(site: SecureSite) -> None:
    (site.directory / "shop.py").write_text(
        "from fastjournal.tasks import Tasks\n"
        "app = Tasks(queue='work')\n"
        "@app.task\n"
        "async def send(number: int) -> None: print(number, flush=True)\n"
    )
    environment = dict(by_environment(site).environment)
    server = environment.pop("FASTJOURNAL_SERVER", site.daemon.address)

    def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=site.directory,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    enqueue = "import shop; shop.send.enqueue(number=7)"
    done = run(sys.executable, "-c", enqueue, FASTJOURNAL_SERVER=server)
    assert done.returncode == 0, done.stderr
    worker = (installed("fj-worker"), "shop:app", "--burst", "--server", server)
    done = run(*worker)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    del environment["FASTJOURNAL_AUTH_FILE"]
    done = run(*worker)
    assert done.returncode == 1
    assert "fj-worker: auth-required: " in done.stderr
    assert "set FASTJOURNAL_AUTH_FILE" in done.stderr


@pytest.mark.parametrize("token", ["", "a-token-0123456789abcdef"])
def test_cli_says_that_what_answers_in_http_is_no_fastjournald(tmp_path: Path, token: str) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token)
    options = ("--auth-file", str(file)) if token else ()

    def answer() -> None:
        with server.accept()[0] as peer:
            peer.recv(1000)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(START_S)
        answering = Thread(target=answer)
        answering.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        said = Cli(tmp_path, None)("get", "plain", "--server", address, *options)
        answering.join()
    assert said.returncode in {1, 69}
    assert b"something answered that is no fastjournald: it speaks HTTP" in said.stderr
    assert b"is the port of fastjournald and not that of --http" in said.stderr
