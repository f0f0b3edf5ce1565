"""Consumers in other languages: examples/consumers work off a domain of a real daemon."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from fastjournal.client import SyncClient
from tests.integration.daemon_process import DaemonProcess, lasting_daemon
from tests.integration.example_programs import ExamplePrograms
from tests.integration.worker_process import wait_until

PATIENCE_S = 120
EXAMPLES = [f"consumers/consumer.{suffix}" for suffix in ("js", "go", "c")]

COMMAND = """
value=$(cat; echo .); value=${value%.}
case $FASTJOURNAL_URI in
    */fails) exit 3;;
    */slow) while ! test -e release; do sleep 0.05; done;;
esac
printf '%s|%s\\n' "$FASTJOURNAL_URI" "$value" >>seen
"""
"""Command of the consumer for each job, in a directory of the test."""

LEASE_S = 6


daemon = lasting_daemon("--retry-delay", "3600000")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExamplePrograms:
    return ExamplePrograms(tmp_path_factory.mktemp("built"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_client_in_another_language_extends_completes_and_fails_work(
    example: str, examples: ExamplePrograms, daemon: DaemonProcess, tmp_path: Path
) -> None:
    domain, seen = Path(example).suffix[1:], tmp_path / "seen"
    large = "l" * 200_000
    host, port = daemon.address.rsplit(":", 1)
    process = subprocess.Popen(
        [*examples.command(example), host, port, domain, str(LEASE_S), "sh", "-c", COMMAND],
        cwd=tmp_path,
    )
    with SyncClient(daemon.address) as client:

        def add(name: str, value: str) -> None:
            client.set(f"{domain}:1:0:{name}", value, uri=f"https://example.org/{domain}/{name}")

        def lines() -> list[str]:
            return seen.read_text().splitlines() if seen.exists() else []

        try:
            # the first one waits for work
            add("first", "grün")
            wait_until(lambda: len(lines()) == 1)
            add("fails", "")
            wait_until(lambda: client.entry_stats(f"{domain}:1:0:fails").attempts == 1)
            add("large", large)
            wait_until(lambda: len(lines()) == 2)
            add("slow", "s")
            wait_until(lambda: client.domain_stats(domain).worked_on == 1)
            slow = f"{domain}:1:0:slow"
            ends_us = client.entry_stats(slow).worked_on_until_us
            assert ends_us is not None
            wait_until(lambda: client.entry_stats(slow).worked_on_until_us != ends_us)
            assert client.entry_stats(slow).attempts == 0, "the lease was extended, and not lost"
            (tmp_path / "release").touch()
            wait_until(lambda: client.domain_stats(domain).entries == 1)
        finally:
            process.kill()
            process.wait()
        failed = client.entry_stats(f"{domain}:1:0:fails")
        assert "3" in str(failed.last_error)
    uri = f"https://example.org/{domain}"
    assert lines() == [f"{uri}/first|grün", f"{uri}/large|{large}", f"{uri}/slow|s"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_client_in_another_language_ends_with_an_error_without_a_daemon(
    example: str, examples: ExamplePrograms, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    line = [*examples.command(example), "127.0.0.1", str(port), "d", "60", "true"]
    done = subprocess.run(line, capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode in (1, 69)
    assert b"consumer" in done.stderr
