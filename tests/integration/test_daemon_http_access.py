"""``--http`` on an address that other machines reach: TLS, tokens, certificates, --insecure.

A real daemon listens on all addresses; urllib and, where it is installed, Prometheus ask it.
"""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client import SyncClient
from fastjournal.client.core.client_credentials import make_context
from tests.certificates import Authority, Files
from tests.integration.daemon_process import START_S, DaemonProcess
from tests.integration.page_contents import get_page, http_address
from tests.integration.raw_client import run_to_its_end
from tests.integration.test_daemon_access import (
    ALL,
    CRAWL,
    authority,
    files,
    hang_up,
    tls_options,
    write_tokens,
)
from tests.integration.worker_process import wait_until

__all__ = ["authority", "files"]

HTTP = ("--http", "0.0.0.0:0")
PROMETHEUS = shutil.which("prometheus")

NAMES = ("/", "/domains", "/domain?name=a", "/entry", "/metrics")
"""Paths that show names of domains or jobs, or figures of them."""
HEALTH = ("/healthz", "/readyz")


def status_of(
    daemon: DaemonProcess, path: str, authorization: str = "", tls: ssl.SSLContext | None = None
) -> int:
    """Ask for a path, by HTTPS if there is a context; return the status."""
    scheme = "http" if tls is None else "https"
    headers = {"Authorization": authorization} if authorization else {}
    url = f"{scheme}://127.0.0.1:{http_address(daemon)[1]}{path}"
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=START_S, context=tls) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("check", [(), ("--check-config",)], ids=["start", "check"])
def test_http_address_of_other_machines_stops_a_start_that_protects_nothing(
    tmp_path: Path, check: tuple[str, ...]
) -> None:
    code, said = run_to_its_end(tmp_path, *check, *HTTP)
    assert code == 64
    assert said == (
        "fastjournald: --http 0.0.0.0:0: other machines could read the names of all domains and "
        "jobs there (give --tls-cert and --tls-key, or --auth-tokens, or both; or --insecure if "
        "that is meant)\n"
    )


def test_insecure_http_shows_all_to_each_name_and_says_so(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, *HTTP, "--insecure") as daemon:
        for path in (*NAMES, *HEALTH):
            assert status_of(daemon, path) == 200, path
        risk = "event=risk reason='whoever reaches 0.0.0.0:0 may read the names of all domains"
        assert risk in daemon.said()


def test_token_is_needed_for_names_and_not_for_probes(tmp_path: Path) -> None:
    tokens = ("--auth-tokens", str(write_tokens(tmp_path)))
    with DaemonProcess(tmp_path, *HTTP, *tokens) as daemon:
        assert [status_of(daemon, path) for path in HEALTH] == [200, 200]
        basic = f"Basic {b64encode(f'any:{ALL}'.encode()).decode()}"
        for path in NAMES:
            assert status_of(daemon, path) == 401, path
            assert status_of(daemon, path, f"Bearer {ALL}") == 200, path
            assert status_of(daemon, path, basic) == 200, path
        for wrong in (f"Bearer {CRAWL}", "Bearer nothing-that-it-knows", "Digest x"):
            assert status_of(daemon, "/metrics", wrong) == 401
        assert daemon.said().count("event=auth-failed") == 2
        assert get_page(daemon, "/")[1].startswith("this needs a token")
        assert get_page(daemon, "/", token="nothing")[1].startswith("the token that was sent is")
        assert ALL not in daemon.said()
        assert "for everyone on the way to read: no TLS" in daemon.said()


def test_https_renews_its_certificate_and_loopback_stays_plain(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    trusting = make_context(authority.path)
    with DaemonProcess(tmp_path, *HTTP, *tls_options(files)) as daemon:
        assert [status_of(daemon, path, tls=trusting) for path in (*NAMES, *HEALTH)] == [200] * 7
        with pytest.raises((OSError, urllib.error.URLError)):
            status_of(daemon, "/healthz")
        renewing = Authority(tmp_path, "renewed")
        renewing.sign("server")
        hang_up(daemon)
        assert status_of(daemon, "/healthz", tls=make_context(renewing.path)) == 200
        with pytest.raises(urllib.error.URLError, match="certificate"):
            status_of(daemon, "/healthz", tls=trusting)
    with DaemonProcess(tmp_path, "--http", "127.0.0.1:0", *tls_options(files)) as daemon:
        assert status_of(daemon, "/metrics") == 200


def test_client_certificate_is_needed_for_names_and_not_for_probes(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    own = authority.sign("client", "client")
    options = (*tls_options(files), "--tls-client-ca", authority.path)
    bare, certified = make_context(authority.path), make_context(authority.path, *own)
    with DaemonProcess(tmp_path, *HTTP, *options) as daemon:
        for path in HEALTH:
            assert status_of(daemon, path, tls=bare) == 200
        for path in NAMES:
            assert status_of(daemon, path, tls=bare) == 403, path
            assert status_of(daemon, path, tls=certified) == 200, path
        strange = Authority(tmp_path, "strange").sign("stranger", "client")
        with pytest.raises(OSError, match=r"alert|EOF|reset|closed"):
            status_of(daemon, "/healthz", tls=make_context(authority.path, *strange))
    tokens = ("--auth-tokens", str(write_tokens(tmp_path)))
    with DaemonProcess(tmp_path, *HTTP, *options, *tokens) as daemon:
        assert status_of(daemon, "/metrics", f"Bearer {ALL}", bare) == 403
        assert status_of(daemon, "/metrics", tls=certified) == 401
        assert status_of(daemon, "/metrics", f"Bearer {ALL}", certified) == 200
        assert status_of(daemon, "/readyz", tls=bare) == 200


CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: with-token
    scheme: https
    tls_config: {{ca_file: {ca}}}
    authorization: {{credentials_file: {token}}}
    static_configs: &daemon [{{targets: ["127.0.0.1:{port}"]}}]
  - job_name: without-token
    scheme: https
    tls_config: {{ca_file: {ca}}}
    static_configs: *daemon
  - job_name: without-tls
    static_configs: *daemon
"""
JOBS = ("with-token", "without-token", "without-tls")
QUERY = 'query?query=fastjournal_domain_waiting_entries{domain="mails"}'
READY = "Server is ready to receive web requests"
LISTENING = re.compile(r"Listening on.* address=127\.0\.0\.1:(\d+)")


@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here: apt-get install prometheus")
def test_prometheus_scrapes_by_tls_with_a_token_and_not_without(
    tmp_path: Path, authority: Authority, files: Files
) -> None:
    tokens = ("--auth-tokens", str(write_tokens(tmp_path)))
    (tmp_path / "token").write_text(ALL)
    with DaemonProcess(tmp_path, *HTTP, *tls_options(files), *tokens) as daemon:
        with SyncClient(daemon.address, tls=authority.path, auth=ALL) as client:
            client.enqueue("mails", "x", uri="mailto:a@example.org")
        text = CONFIG.format(
            ca=authority.path, token=tmp_path / "token", port=http_address(daemon)[1]
        )
        config = tmp_path / "prometheus.yml"
        config.write_text(text)
        command = [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/db"]
        log = tmp_path / "prometheus.err"
        with (
            log.open("wb") as said,
            subprocess.Popen(
                [*command, "--web.listen-address=127.0.0.1:0"], stdout=said, stderr=said
            ) as prometheus,
        ):
            try:
                wait_until(lambda: LISTENING.search(log.read_text()) is not None)
                wait_until(lambda: READY in log.read_text())
                [port] = LISTENING.findall(log.read_text())
                wait_until(lambda: None not in scraped(port).values())
                targets = scraped(port)
                wait_until(lambda: ask(port, QUERY)["result"])
                [found] = ask(port, QUERY)["result"]
            finally:
                prometheus.terminate()
    assert targets["with-token"] == ("up", "")
    health, error = targets["without-token"] or ("", "")
    assert health == "down"
    assert "401" in error
    assert (targets["without-tls"] or ("", ""))[0] == "down"
    assert (found["metric"]["job"], found["value"][1]) == ("with-token", "1")


def scraped(port: str) -> dict[str, tuple[str, str] | None]:
    """Return health and last error of each job; None: it was not scraped so far."""
    found: dict[str, tuple[str, str] | None] = dict.fromkeys(JOBS)
    for one in ask(port, "targets")["activeTargets"]:
        if one["health"] != "unknown":
            found[one["labels"]["job"]] = one["health"], one["lastError"]
    return found


def ask(port: str, path: str) -> Any:
    """Return what the API of Prometheus says."""
    url = f"http://127.0.0.1:{port}/api/v1/{path}".replace('"', "%22")
    with urllib.request.urlopen(url, timeout=START_S) as answer:
        reply = json.loads(answer.read())
    assert reply["status"] == "success", reply
    return reply["data"]
