"""Producers in other languages: examples/producers, and the test vectors of docs/spool.md."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal import domain_of
from fastjournal.client import SyncClient
from fastjournal.errors import BadRequestError
from fastjournal.keys import parse_journal_key
from fastjournal.limits import PRIORITY_DEFAULT
from fastjournal.protocol import Flag, ValueType
from fastjournal.spool import DeadDirectory, list_slots
from tests.integration.daemon_process import DaemonProcess, lasting_daemon
from tests.integration.example_programs import ExamplePrograms
from tests.integration.programs import forwarding
from tests.unit.spool_files import requests_in

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/spool.md").read_text(encoding="utf-8")
PATIENCE_S = 120

EXAMPLES = [f"producers/producer.{suffix}" for suffix in ("sh", "php", "js", "go", "c")]
FAST = [example for example in EXAMPLES if not example.endswith(".sh")]

URIS = {
    "https://User@Example.ORG.:8080/a?b#c": "example.org%3A8080",
    "http://www.example.org.": "www.example.org",
    "http://[2001:DB8::1]:81/": "2001%3Adb8%3A%3A1%3A81",
}
LINES = ["first", "zwei %s \\n ü", "", "l" * 300]
ON_A_FULL_DISK = """
mount -t tmpfs -o size=64k none "$0" && echo mounted || exit
mkdir "$0/spool"
cat /dev/zero >"$0/filler" 2>/dev/null
"$@"
code=$?
ls -A "$0/spool"
exit $code
"""
LONG_LINE = "x" * 100_000
"""Longer than the buffers of standard libraries."""

DOMAINS = {
    "https://User@Example.ORG.:8080/a?b#c": "example.org%3A8080",
    "http://example.org": "example.org",
    "//example.org/": "example.org",
    "gemini://EXAMPLE.org/": "example.org",
    "svn+ssh://a:b@c@Example.org?x=//y": "example.org",
    "http://host_1:080/": "host_1%3A80",
    "http://host:0/": "host%3A0",
    "http://host:00/": "host%3A0",
    "http://host:/": "host",
    "https://host:443/": "host%3A443",
    "http://host:65535/": "host%3A65535",
    "http://127.0.0.1/": "127.0.0.1",
    "http://127.1/": "127.1",
    "http://[2001:DB8::1]/": "2001%3Adb8%3A%3A1",
    "http://[::ffff:1.2.3.4]:081/": "%3A%3Affff%3A1.2.3.4%3A81",
    "http://xn--bcher-kva.example/": "xn--bcher-kva.example",
    "http://host:65536/": None,
    "http://host:99999999999999999999/": None,
    "http://host:8o/": None,
    "mailto:a@b": None,
    "example.org/path": None,
    "example.org:80/": None,
    "http:example.org": None,
    "http:///path": None,
    "http://:80/": None,
    "http://./": None,
    "http://user@/": None,
    "http://a b/": None,
    "http://a..b/": None,
    "http://-a/": None,
    "http://ex%61mple.org/": None,
    "http://a,b/": None,
    "http://[::g]/": None,
    "http://[::1/": None,
}
"""URI to its domain; None: it is refused. The same for the library and all examples."""

DOMAINS_BY_IDNA = {
    "http://bücher.example/": "xn--bcher-kva.example",
    "http://BÜCHER.example:8080/": "xn--bcher-kva.example%3A8080",
    "http://straße.example./": "xn--strae-oqa.example",
}
"""Hosts that are not ASCII: a program without IDNA refuses them, and says so."""

REFUSED = {
    "mailto:a": b"no host",
    f"https://{'a' * 4085}/": b"over 4096 bytes",
    f"https://example.org/{'a' * 4096}": b"over 4096 bytes",
}
"""URIs that a producer refuses: the second one is short enough, but the key is not."""


daemon = lasting_daemon()


@pytest.fixture(scope="module")
def spool(daemon: DaemonProcess) -> Iterator[Path]:
    """A spool whose forwarder runs."""
    directory = daemon.directory / "spool"
    directory.mkdir()
    with forwarding(directory, daemon.address):
        yield directory


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExamplePrograms:
    return ExamplePrograms(tmp_path_factory.mktemp("built"))


@pytest.fixture(params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def command(example: str, examples: ExamplePrograms) -> list[str]:
    return examples.command(example)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An empty spool without a forwarder."""
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


def run(line: list[str], text: bytes = b"x", **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        line, input=text, capture_output=True, check=False, timeout=PATIENCE_S, **options
    )


def produce(
    command: list[str], spool: Path, uri: str, lines: list[str], umask: int = 0o077
) -> None:
    """Run a producer, usually under a umask that takes away too much."""
    done = run([*command, str(spool), uri], "\n".join(lines).encode(), umask=umask)
    assert done.returncode == 0, done.stderr.decode()


def test_spool_producer_makes_a_whole_drop_in_that_is_delivered(
    example: str, command: list[str], made: Path, spool: Path, daemon: DaemonProcess
) -> None:
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
    domain = f"{Path(example).suffix[1:]}.example"
    uri = f"https://{domain}/"
    produce(command, spool, uri, [*LINES, "the newest"])
    with SyncClient(daemon.address) as client:
        found = {}
        while found.get(uri.encode()) != b"the newest":
            for job in client.next(domain, delete=True, wait=PATIENCE_S):
                found[job.second_key] = job.value


def test_spool_producer_refuses_a_uri_without_a_host_and_a_key_over_4096_bytes(
    command: list[str], made: Path
) -> None:
    for uri, error in REFUSED.items():
        done = run([*command, str(made), uri])
        assert done.returncode != 0
        assert error in done.stderr + done.stdout
        assert os.listdir(made) == []


@pytest.mark.parametrize("uri", [*DOMAINS, *DOMAINS_BY_IDNA])
def test_domain_of_the_library_is_that_of_the_table_of_producers(uri: str) -> None:
    wanted = (DOMAINS | DOMAINS_BY_IDNA)[uri]
    if wanted is None:
        with pytest.raises(BadRequestError, match=r"no host|no domain"):
            domain_of(uri)
    else:
        assert domain_of(uri) == wanted


def has_idna(example: str) -> bool:
    """Whether this example converts a host here: Node does, PHP with its module intl."""
    if example.endswith(".php"):
        return b"intl" in subprocess.run(["php", "-m"], capture_output=True, check=True).stdout
    return example.endswith(".js")


def test_spool_producer_finds_the_domain_of_a_uri_or_refuses_it(
    example: str, command: list[str], tmp_path: Path
) -> None:
    wanted: dict[str, str | None] = {**DOMAINS}
    wanted |= DOMAINS_BY_IDNA if has_idna(example) else dict.fromkeys(DOMAINS_BY_IDNA)
    found: dict[str, str | None] = {}
    for uri in wanted:
        done = run([*command, str(tmp_path), uri])
        if done.returncode:
            error = (done.stderr + done.stdout).decode()
            assert f"no host in {uri}" in error
            assert uri.isascii() or "ASCII" in error
            found[uri] = None
            continue
        (file,) = list_slots(tmp_path)
        (request,) = requests_in(Path(file.path))
        key = parse_journal_key(request.key)
        assert key is not None
        found[uri] = key.domain.decode()
        Path(file.path).unlink()
    assert found == wanted
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("example", FAST, indirect=True)
def test_spool_producer_spools_a_long_line_and_what_is_behind_it(
    command: list[str], made: Path
) -> None:
    lines = ["first", LONG_LINE, "last"]
    produce(command, made, "https://example.org/", lines)
    (file,) = list_slots(made)
    requests = requests_in(Path(file.path))
    assert [request.value for request in requests] == [line.encode() for line in lines]


@pytest.mark.parametrize("example", FAST, indirect=True)
def test_spool_producer_that_cannot_read_its_lines_fails(command: list[str], made: Path) -> None:
    unreadable = os.open(made, os.O_RDONLY)  # read fails: it is a directory
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


def test_spool_producer_on_a_full_disk_fails_and_leaves_nothing(
    command: list[str], tmp_path: Path
) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: a small file system needs a namespace")
    rights = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    done = run(
        [
            *("unshare", "--mount", *rights, "sh", "-c", ON_A_FULL_DISK, str(tmp_path)),
            *(*command, f"{tmp_path}/spool", "https://example.org/"),
        ]
    )
    if b"mounted" not in done.stdout:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode()}")
    assert done.returncode != 0
    assert re.search(rb"(?i)no space|i/o error", done.stderr)
    assert done.stdout == b"mounted\n", "and no file is left"


@pytest.mark.skipif(shutil.which("strace") is None, reason="left out: no strace here")
def test_spool_producer_syncs_its_private_file_then_links_it_then_syncs_the_directory(
    command: list[str], made: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    chmod = "chmod,fchmod,fchmodat,?fchmodat2"
    calls = ["strace", "-f", "-y", "-e", f"trace=fsync,link,linkat,{chmod}", "-o", str(trace)]
    calls += ["-e", f"inject={chmod}:retval=0"]  # the file keeps the mode of its creation
    produce([*calls, *command], made, "https://example.org/", ["x"], umask=0)
    (file,) = list_slots(made)
    mode = stat.S_IMODE(Path(file.path).stat().st_mode)
    assert mode == 0o600
    lines = [line for line in trace.read_text().splitlines() if str(made) in line]
    lines = [line for line in lines if "chmod" not in line]
    first, link, second = lines
    assert f"/.{file.name}.tmp>" in first
    assert f'/{file.name}"' in link
    assert f"<{made}>" in second
    assert all(line.endswith("= 0") for line in lines)


# --- docs/spool.md --------------------------------------------------------------------------------


def vector() -> bytes:
    """Return the file of the page."""
    found = re.search(r"<!-- vector -->\n\n```text\n([^`]+)```\n", PAGE)
    assert found is not None
    return bytes.fromhex(found[1])


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
