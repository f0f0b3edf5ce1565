"""Producers in other languages: examples/producers, and the test vectors of docs/spool.md."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from fastjournal import domain_of
from fastjournal.client import SyncClient
from fastjournal.keys import parse_journal_key
from fastjournal.limits import PRIORITY_DEFAULT
from fastjournal.protocol import Flag, ValueType
from fastjournal.spool import DeadDirectory, list_slots
from tests.bench.bench_drop_ins import make
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import Program, installed
from tests.unit.spool_files import requests_in

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/producers"
PAGE = (ROOT / "docs/spool.md").read_text(encoding="utf-8")
PATIENCE_S = 120

NEEDS = {
    "producer.sh": ("sh",),
    "producer.php": ("php",),
    "producer.js": ("node",),
    "producer.go": ("go",),
    "producer.c": ("cc",),
}
"""Example to the program that runs or compiles it."""

URIS = {
    "https://User@Example.ORG:8080/a?b#c": "example.org%3A8080",
    "http://www.example.org": "www.example.org",
    "http://[2001:DB8::1]:81/": "2001%3Adb8%3A%3A1%3A81",
}
LINES = ["first", "zwei %s \\n ü", "", "l" * 300]
LONG_LINE = "x" * 100_000
"""Longer than the buffers of standard libraries."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("producers")) as process:
        yield process


@pytest.fixture(scope="module")
def spool(daemon: DaemonProcess) -> Iterator[Path]:
    """A spool whose forwarder runs."""
    directory = daemon.directory / "spool"
    directory.mkdir()
    line = [installed("fj-forwarder"), "--spool", str(directory), "--server", daemon.address]
    forwarder = Program(line)
    try:
        yield directory
        forwarder.send_signal(signal.SIGTERM)
        assert forwarder.wait(PATIENCE_S) == 0
    finally:
        forwarder.kill()
        forwarder.wait()


def built(example: str, directory: Path) -> list[str]:
    """Return the command that runs an example; skip the test if it cannot be run here."""
    (tool,) = NEEDS[example]
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"examples/producers/{example} is left out: no {tool} here")
    path, program = str(EXAMPLES / example), str(directory / "producer")
    if example == "producer.c":
        subprocess.run([found, "-Wall", "-Wextra", "-Werror", "-o", program, path], check=True)
        return [program]
    if example == "producer.go":
        subprocess.run([found, "build", "-o", program, path], check=True)
        return [program]
    return [found, path]


def produce(command: list[str], spool: Path, uri: str, lines: list[str]) -> None:
    """Run a producer under a umask that takes away too much."""
    done = subprocess.run(
        [*command, str(spool), uri],
        input="\n".join(lines).encode(),
        capture_output=True,
        check=False,
        umask=0o077,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("example", NEEDS)
def test_spool_producer_makes_a_whole_drop_in_that_is_delivered(
    example: str, spool: Path, daemon: DaemonProcess, tmp_path: Path
) -> None:
    command = built(example, tmp_path)
    made = tmp_path / "spool"
    made.mkdir()
    for uri, domain in URIS.items():
        assert domain_of(uri) == domain
        produce(command, made, uri, LINES)
        (file,) = list_slots(made)
        assert stat.S_IMODE(Path(file.path).stat().st_mode) == 0o660
        requests = requests_in(Path(file.path))
        assert [request.value for request in requests] == [line.encode() for line in LINES]
        keys = [parse_journal_key(request.key) for request in requests]
        for request, key in zip(requests, keys, strict=True):
            assert key is not None
            assert (key.domain.decode(), key.priority) == (domain, PRIORITY_DEFAULT)
            assert key.not_before_us == request.timestamp
            assert (request.second_key, request.value_type) == (uri.encode(), ValueType.BUFFER)
            assert request.flags & Flag.PERSIST
        assert len({key.id for key in keys if key is not None}) == len(LINES)
        assert os.listdir(made) == [file.name], "nothing else is left"
        Path(file.path).unlink()
    uri = f"https://{example}.example/"
    produce(command, spool, uri, [*LINES, "the newest"])
    with SyncClient(daemon.address) as client:
        found = {}
        while found.get(uri.encode()) != b"the newest":
            for job in client.next(f"{example}.example", delete=True, wait=PATIENCE_S):
                found[job.second_key] = job.value


@pytest.mark.parametrize("example", NEEDS)
def test_spool_producer_refuses_a_uri_without_a_host(example: str, tmp_path: Path) -> None:
    command = built(example, tmp_path)
    made = tmp_path / "spool"
    made.mkdir()
    done = subprocess.run(
        [*command, str(made), "mailto:a"], input=b"x", capture_output=True, check=False
    )
    assert done.returncode != 0
    assert b"no host" in done.stderr + done.stdout
    assert list_slots(made) == []


@pytest.mark.parametrize("example", [name for name in NEEDS if name != "producer.sh"])
def test_spool_producer_spools_a_long_line_and_what_is_behind_it(
    example: str, tmp_path: Path
) -> None:
    command = built(example, tmp_path)
    made = tmp_path / "spool"
    made.mkdir()
    lines = ["first", LONG_LINE, "last"]
    produce(command, made, "https://example.org/", lines)
    (file,) = list_slots(made)
    requests = requests_in(Path(file.path))
    assert [request.value for request in requests] == [line.encode() for line in lines]


@pytest.mark.parametrize("example", [name for name in NEEDS if name != "producer.sh"])
def test_spool_producer_that_cannot_read_its_lines_fails(example: str, tmp_path: Path) -> None:
    command = built(example, tmp_path)
    made = tmp_path / "spool"
    made.mkdir()
    unreadable = os.open(tmp_path, os.O_RDONLY)  # read fails: it is a directory
    try:
        done = subprocess.run(
            [*command, str(made), "https://example.org/"],
            stdin=unreadable,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
    finally:
        os.close(unreadable)
    assert done.returncode != 0
    assert list_slots(made) == []


# --- docs/spool.md --------------------------------------------------------------------------------


def vector() -> bytes:
    """Return the file of the page."""
    found = re.search(r"<!-- vector -->\n\n```text\n([^`]+)```\n", PAGE)
    assert found is not None
    return bytes.fromhex(found[1])


def fields() -> list[tuple[str, str, str]]:
    """Return bytes, name and value of each row of the table of fields."""
    section = PAGE.partition("<!-- vector -->")[2].partition("\n\nThe second record")[0]
    found: list[tuple[str, str, str]] = re.findall(
        r"^\| `([0-9a-f ]+)` \| (.*?) \| (.*?) \|$", section, re.MULTILINE
    )
    return found


def test_spool_vector_of_the_page_is_what_the_table_says() -> None:
    data = vector()
    joined = bytes.fromhex(" ".join(row[0] for row in fields()))
    assert len(fields()) == 18
    assert data.startswith(joined)
    for raw, name, value in fields():
        whole, text = bytes.fromhex(raw), value.partition(",")[0].strip("`")
        if name.startswith("CRC"):
            body = data[9 : len(joined) - 4]
            assert whole == google_crc32c.value(body).to_bytes(4) == int(text, 16).to_bytes(4)
        elif text.startswith("0x") or text.isdecimal():
            assert int.from_bytes(whole) == int(text, 0), name
        else:
            assert whole.decode() == text, name
    assert f"{google_crc32c.value(b'123456789'):08x}" in PAGE


def test_spool_vector_of_the_page_holds_two_requests(tmp_path: Path) -> None:
    file = tmp_path / "20261120T080000Z-vector.fjs"
    file.write_bytes(vector())
    first, second = requests_in(file)
    assert first.key.decode() in PAGE
    assert second.key.decode() in PAGE
    assert (first.timestamp, second.timestamp) == (1795161600000000, 1795161600000001)
    assert (first.value, second.value) == (b"changed", b"")
    assert first.second_key == second.second_key == b"https://example.org/"
    assert f"0x{int.from_bytes(vector()[-4:]):08x}" in PAGE


def test_spool_vector_of_the_page_is_taken_by_a_forwarder(
    spool: Path, daemon: DaemonProcess
) -> None:
    made = spool / ".20261120T080000Z-vector.fjs.tmp"
    made.write_bytes(vector())
    os.link(made, spool / "20261120T080000Z-vector.fjs")
    made.unlink()
    with SyncClient(daemon.address) as client:
        (job,) = client.next("pages", delete=True, wait=PATIENCE_S)
        while job.value:
            (job,) = client.next("pages", delete=True, wait=PATIENCE_S)
    assert job.key == b"pages:128:1795161600000001:a2"
    assert DeadDirectory(spool).count() == 0


def test_spool_drop_ins_by_the_thousand_are_delivered_and_deleted(
    spool: Path, daemon: DaemonProcess
) -> None:
    """The small form of ``tests/bench/bench_drop_ins.py``."""
    make(spool, 2000, slots=False)
    with SyncClient(daemon.address) as client:
        taken = 0
        while taken < 2000:
            taken += len(client.next("d", count=500, delete=True, wait=PATIENCE_S))
    deadline = time.monotonic() + PATIENCE_S
    while list_slots(spool):
        assert time.monotonic() < deadline
        time.sleep(0.01)
