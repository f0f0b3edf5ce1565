"""fj-cli spool put and spool dead, as they are installed, on real spools."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastjournal.keys import parse_journal_key
from fastjournal.protocol import Flag, Function, Request, ValueType, encode_request
from fastjournal.spool import DeadDirectory, Reason, Spool, list_slots, spool_status
from fastjournal.spool.format import encode_record
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from tests.integration.cli_process import TIMEOUT_S, Cli
from tests.integration.programs import forwarding, installed, run_program
from tests.integration.terminal import Terminal
from tests.unit.spool_files import requests_in


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path, None)


def spooled(directory: Path) -> list[Request]:
    return [request for slot in list_slots(directory) for request in requests_in(Path(slot.path))]


def test_spool_put_appends_one_entry_from_arguments(cli: Cli, tmp_path: Path) -> None:
    spool = tmp_path / "s"
    (first,) = cli.json("spool", "put", str(spool), "--uri", "http://Ex.org:81/ü", "grün")
    cli.json(
        *("spool", "put", str(spool), b"\xff", "--domain", "d", "--id", "i", "--durable"),
        *("--priority", "3", "--not-before", "@1795161600.5", "--overwrite"),
    )
    one, two = spooled(spool)
    assert first["key"].encode() == one.key
    assert one.key.startswith(b"ex.org%3A81:128:")
    assert (one.second_key, one.value, one.value_type) == (
        "http://Ex.org:81/ü".encode(),
        "grün".encode(),
        ValueType.STRING,
    )
    assert (two.key, two.value, two.value_type) == (
        b"d:003:1795161600500000:i",
        b"\xff",
        ValueType.BUFFER,
    )
    done = cli("spool", "put", str(spool), "value")
    assert (done.returncode, b"--uri" in done.stderr) == (2, True)
    done = cli("spool", "put", str(spool), "--queue", "d", "--domain", "d", "v")
    assert (done.returncode, b"two names" in done.stderr) == (2, True)
    line = b'{"key": "d:1:0:x", "priority": 128}\n'
    done = cli("spool", "put", str(spool), stdin=line)
    assert (done.returncode, b"line 1: key excludes queue" in done.stderr) == (1, True)
    done = cli("spool", "put", str(spool), "--key", "d:1:0:x", "--priority", "128", "v")
    assert (done.returncode, b"key excludes" in done.stderr) == (2, True)
    done = cli("spool", "put", str(spool), "--uri", "nowhere", "v")
    assert (done.returncode, b"no host" in done.stderr) == (2, True)
    assert len(spooled(spool)) == 2


GOOD = [
    {"uri": "https://example.org/a", "value": "text"},
    {"domain": "d", "value": 7, "priority": 0, "id": "x", "not_before": 1795161600.5},
    {"domain": "d", "value": True, "not_before": "2026-11-20T08:00Z", "overwrite": True},
    {"domain": "d", "value": None, "not_before_us": 1795161600000000},
    {"domain": "d", "value_b64": "/w=="},
    {"queue": "d"},
    {"key": "d:001:0:x", "unique": "7"},
]
BAD = {
    b'{"value": "x"}': "no host",
    b'{"uri": 3}': "$.uri",
    b'{"domain": "d", "value": {"a": 1}}': "$.value",
    b'{"domain": "d", "colour": 1}': "colour",
    b'{"domain": "a:b"}': "holds ':'",
    b'{"queue": "d", "domain": "d"}': "two names of one argument",
    b'{"domain": "d", "priority": 256}': "priority",
    b'{"domain": "d", "not_before": "soon"}': "soon",
    b'{"domain": "d", "not_before": -1}': "not_before -1.0 is before the year 2000 (write a later",
    b'{"domain": "d", "not_before": 9.5}': "not_before 9.5 is before the year 2000 (write a later",
    b'{"domain": "d", "not_before": "1970-01-02"}': "not_before 1970-01-02 is before the year 2000",
    b'{"domain": "d", "not_before": 1795161600000}': "is after the year 9999; the unit is seconds",
    b'{"domain": "d", "not_before": 1, "not_before_us": 1}': "give one",
    b'{"domain": "d", "value": "x", "value_b64": ""}': "give one",
    b'{"domain": "d", "value_b64": "?"}': "base64",
    b'{"domain": "d", "value": 99999999999999999999}': "8 bytes",
    b'{"domain": "\\ud800"}': "\\ud800 (byte 12) is half of a surrogate pair",
    b"[]": "object",
    b"\xff": "JSON",
    b'{"domain": "d"': "truncated",
}


def test_spool_put_appends_the_good_lines_and_names_the_bad_ones(cli: Cli, tmp_path: Path) -> None:
    spool, rejects = tmp_path / "s", tmp_path / "rejects"
    good = [json.dumps(line).encode() for line in GOOD]
    lines = [*good[:3], b"", *BAD, *good[3:]]
    done = cli(
        *("spool", "put", str(spool), "--json", "--rejects", str(rejects)),
        stdin=b"\r\n".join(lines),
    )
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"spooled": len(good), "bad": len(BAD)}
    assert rejects.read_bytes().replace(b"\r", b"").splitlines() == list(BAD)
    told = done.stderr.decode().splitlines()
    for number, (text, line) in enumerate(zip(BAD.values(), told, strict=True), 5):
        assert line.startswith(f"fj-cli: line {number}: "), line
        assert text in line
    found = spooled(spool)
    keys = [parse_journal_key(request.key) for request in found]
    assert [key and key.domain for key in keys] == [b"example.org", *[b"d"] * 6]
    assert [key and key.not_before_us for key in keys][1:4] == [
        1795161600500000,
        1795161600000000,
        1795161600000000,
    ]
    types = [request.value_type for request in found]
    assert types == [2, 3, 5, 0, 1, 2, 2]
    assert found[-1].second_key == b"unique:d:7"
    replaces = Flag.OVERWRITE | Flag.WORKED_ON
    assert [request.flags & replaces for request in found] == [
        0,
        0,
        Flag.OVERWRITE,
        0,
        0,
        0,
        replaces,
    ]
    assert found[4].value == b"\xff"
    assert len({request.timestamp for request in found}) == len(found)


def test_spool_put_on_a_full_disk_counts_the_lines_that_are_there(tmp_path: Path) -> None:
    """Lines of one read take several writes, of which the last one fails."""
    lines, spool, limit = tmp_path / "lines", tmp_path / "spool", 600_000
    lines.write_text("".join(f'{{"domain":"d","uri":"http://h/{n}"}}\n' for n in range(7000)))

    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with lines.open("rb") as source:
        done = subprocess.run(
            [installed("fj-cli"), "spool", "put", str(spool), "--json"],
            stdin=source,
            capture_output=True,
            check=False,
            timeout=60,
            preexec_fn=limit_files,
        )
    assert done.returncode == 74, done.stderr.decode()
    there = spool_status(spool).pending
    assert there > 0
    assert json.loads(done.stdout) == {"spooled": there, "bad": 0}


def test_spool_put_appends_a_line_as_soon_as_it_comes(cli: Cli, tmp_path: Path) -> None:
    spool = tmp_path / "s"
    process = subprocess.Popen(
        [installed("fj-cli"), "spool", "put", str(spool), "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=cli.environment,
    )
    assert process.stdin is not None
    process.stdin.write(b'{"domain": "d"}\n{"domain"')
    process.stdin.flush()
    while not (spool.exists() and spooled(spool)):
        assert process.poll() is None
        time.sleep(0.01)
    output, _ = process.communicate(b': "e"}', timeout=60)
    assert json.loads(output) == {"spooled": 2, "bad": 0}
    assert len(spooled(spool)) == 2


# --- dead letters ---------------------------------------------------------------------------------


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A spool with dead letters: two refused requests, damage, and bytes that are no request."""
    spool = tmp_path / "s"
    ledger = Ledger(refuse=lambda request: REFUSED.get(request.key.rpartition(b":")[2]))
    with Spool(spool) as writer:
        for id in (b"large", b"value", b"fine"):
            writer.append(domain="d", id=id, uri=b"https://example.org/" + id, value=id)
    (slot,) = list_slots(spool)
    with open(slot.path, "ab") as file:
        file.write(b"no record at all" + encode_record(b"no request"))
    forward(spool, ledger)
    return spool


REFUSED = {b"large": "too-large over max-value", b"value": "bad-value"}


def forward(spool: Path, ledger: Ledger) -> None:
    with ScriptedDaemon(ledger.answer) as daemon:
        line = [installed("fj-forwarder"), "--spool", str(spool), "--server", daemon.address]
        done = run_program([*line, "--once"], capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr


def names_of(cli: Cli, spool: Path) -> dict[str, str]:
    """Return the names of the pieces by code."""
    return {piece["code"]: piece["name"] for piece in cli.json("spool", "dead", "list", str(spool))}


def test_spool_dead_lists_and_shows_what_is_there(cli: Cli, dead: Path) -> None:
    pieces = {piece["code"]: piece for piece in cli.json("spool", "dead", "list", str(dead))}
    assert set(pieces) == {"too-large", "bad-value", "bad-request", "damaged"}
    large = pieces["too-large"]
    assert (large["uri"], large["reason"]) == ("https://example.org/large", "over max-value")
    shown = cli("spool", "dead", "list", str(dead), "--table", "--reason", "bad-value")
    assert b"https://example.org/value" in shown.stdout
    assert b"large" not in shown.stdout
    shown = cli("spool", "dead", "show", str(dead), large["name"], "--table")
    assert b"over max-value" in shown.stdout
    assert b"00000000  46 4a 00 01 00 02" in shown.stdout
    raw = cli("spool", "dead", "show", str(dead), f"{large['name']}.bin", "--raw")
    assert raw.stdout == DeadDirectory(dead).read(large["name"])
    (value,) = cli.json("spool", "dead", "show", str(dead), large["name"])
    assert value["value"] == "large"
    missing = cli("spool", "dead", "show", str(dead), "../../etc/passwd")
    assert (missing.returncode, b"no piece" in missing.stderr) == (2, True)
    assert cli("spool", "dead", "list", str(dead), "--reason", "none").returncode == 75


def test_spool_dead_retry_puts_requests_back_and_leaves_damage(cli: Cli, dead: Path) -> None:
    before = names_of(cli, dead)
    (done,) = cli.json("spool", "dead", "retry", str(dead), before["too-large"], "--yes")
    assert done == {"retried": 1, "stayed": 0}
    ledger = Ledger()
    forward(dead, ledger)
    assert [key.rpartition(b":")[2] for key in ledger.applied] == [b"large"]
    rest = cli("spool", "dead", "retry", str(dead), "--all", "--yes", "--json")
    assert rest.returncode == 1, "some pieces are no requests"
    assert json.loads(rest.stdout) == {"retried": 1, "stayed": 2}
    forward(dead, ledger)
    assert len(ledger.applied) == 2
    assert set(names_of(cli, dead)) == {"bad-request", "damaged"}
    assert spool_status(dead).pending == 0


def test_spool_dead_drop_asks_and_deletes_by_reason_and_all(cli: Cli, dead: Path) -> None:
    count = DeadDirectory(dead).count()
    asked = cli("spool", "dead", "drop", str(dead), "--all")
    assert (asked.returncode, b"--yes" in asked.stderr) == (2, True)
    assert cli("spool", "dead", "drop", str(dead), "--yes").returncode == 2, "nothing was named"
    (dropped,) = cli.json("spool", "dead", "drop", str(dead), "--reason", "bad-value", "--yes")
    assert dropped == {"dropped": 1}
    assert DeadDirectory(dead).count() == count - 1
    cli.json("spool", "dead", "drop", str(dead), "--all", "--yes")
    assert os.listdir(dead / "dead") == []
    assert cli("spool", "dead", "drop", str(dead), "--all", "--yes").returncode == 75


def test_spool_dead_commands_follow_no_link_and_wait_for_no_fifo(cli: Cli, dead: Path) -> None:
    secret = dead.parent / "secret"
    secret.write_bytes(b"secret")
    (dead / "dead/link.bin").symlink_to(secret)
    os.mkfifo(dead / "dead/fifo.bin")
    names = [piece["name"] for piece in cli.json("spool", "dead", "list", str(dead))]
    assert {"link", "fifo"} <= set(names)
    for name in ("link", "fifo"):
        shown = cli("spool", "dead", "show", str(dead), name, "--raw")
        assert (shown.returncode, shown.stdout) == (74, b"")
    retried = cli("spool", "dead", "retry", str(dead), "link", "fifo", "--yes")
    assert retried.returncode == 1
    cli.json("spool", "dead", "drop", str(dead), "link", "fifo", "--yes")
    assert secret.read_bytes() == b"secret"


SIZES = [(80, 24)]
SLOT = "20261120T080000Z.fjs"
INSTANT_US = 1_795_161_600_000_000
URI = b"https://example.org/" + b"a" * 36
KEY = b"example.org:128:%d:a1" % INSTANT_US
REASON = "over max-value 1,000,000"
HOSTILE = b"\x1b[2J\x9b31m\x07"

REDRAW = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
"""Back to the first line of the last drawing, which is cleared."""


class Drawn(Terminal):
    """A terminal with a program that draws its lines anew, in place."""

    def drawings(self) -> list[list[str]]:
        """Return the lines of each drawing that is complete; see that it replaced the one before.

        The last one may be incomplete, so it is left out.
        """
        *texts, last = REDRAW.split(self.written)
        backs = REDRAW.findall(self.written)
        if not last.strip("\x1b[12AK"):
            # the way back from the last drawing may be cut short
            texts, backs = texts[:-1], backs[:-1]
        found = [text.replace("\r\n", "\n").split("\n") for text in texts]
        for lines, back in zip(found, backs, strict=True):
            assert back.count("\x1b[1A") == len(lines) - 1, (lines, back)
        return [[line.replace("\x1b[?25l", "") for line in lines] for lines in found]

    def screen(self) -> list[str]:
        return (self.drawings() or [[]])[-1]


@pytest.fixture
def dead_terminal(tmp_path: Path) -> DeadDirectory:
    """Dead letters: a refused request, and damage that would disturb a terminal."""
    spool = tmp_path / "s"
    spool.mkdir(exist_ok=True)
    pieces = DeadDirectory(spool)
    frame = encode_request(Request(Function.SET, 0, Flag.PERSIST, INSTANT_US, KEY, URI, 1, b"v"))
    pieces.put(frame, Reason(SLOT, 8, len(frame), "frame", "too-large", REASON, INSTANT_US))
    pieces.put(HOSTILE, Reason(SLOT, 500, 8, "damage", "torn", HOSTILE.decode("latin-1"), 0))
    return pieces


def command(*arguments: object) -> list[str]:
    return [installed("fj-cli"), "spool", *map(str, arguments)]


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_spool_dead_asks_on_a_terminal_and_ctrl_c_changes_nothing(
    cli: Cli, tmp_path: Path, dead_terminal: DeadDirectory, action: str
) -> None:
    line = command("dead", action, tmp_path / "s", "--all")
    question = rf"{action.capitalize()} [12] pieces? of dead/\? \[y/N\]: $"
    with Terminal(line, cli.environment) as terminal:
        terminal.until(question)
        assert terminal.interrupt() == 130
        assert terminal.is_sane
        assert terminal.text.endswith("^C\n"), "the shell goes on in a line of its own"
    assert dead_terminal.count() == 2
    assert spool_status(tmp_path / "s").pending == 0
    with Terminal(line, cli.environment) as terminal:
        terminal.until(question)
        terminal.press("y\n")
        code = terminal.end()
        assert terminal.is_sane
    if action == "drop":
        assert (code, dead_terminal.count()) == (0, 0)
        assert terminal.text.endswith("2 dropped\n")
    else:
        assert (code, dead_terminal.count(), spool_status(tmp_path / "s").pending) == (1, 1, 1)
        assert re.search(r"it stays in dead/\n1 put back into the spool\n$", terminal.text)


@pytest.fixture
def forwarded(tmp_path: Path) -> Iterator[Path]:
    """A spool with a forwarder whose daemon is not there."""
    spool = tmp_path / "s"
    spool.mkdir(exist_ok=True)
    with ScriptedDaemon(lambda _: []) as daemon:
        address = daemon.address
    with forwarding(spool, address, stderr=subprocess.DEVNULL):
        yield spool


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_spool_status_on_a_terminal_is_drawn_in_place_until_ctrl_c(
    cli: Cli, forwarded: Path, size: tuple[int, int]
) -> None:
    line = command("status", forwarded, "--watch", "--interval", "100ms")
    with Drawn(line, cli.environment, size) as terminal:
        terminal.until(r"daemon +not connected(.|\n)*pending +0\b")
        with Spool(forwarded) as spool:
            spool.append(domain="d", value=b"x")
        terminal.until(r"pending +1\b(.|\n)*oldest +\d")
        assert terminal.interrupt() == 0
        assert terminal.is_sane
        assert terminal.written.endswith("\r\n\x1b[?25h"), "the last figures stay"
    for drawing in terminal.drawings():
        lines = [text.removesuffix("^C") for text in drawing]
        assert len(lines) <= size[1]
        assert max(map(len, lines)) <= size[0]
        assert all(map(str.isprintable, lines))


def test_spool_put_on_a_terminal_counts_in_place_and_ctrl_c_says_how_many_are_there(
    cli: Cli, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    line = command("put", tmp_path / "s", "--progress")
    with Drawn(line, cli.environment, stdin=reading) as terminal:
        feed(
            writing, lambda: re.search(r"spooling [\d,]+ ", "\n".join(terminal.screen())), terminal
        )
        code = terminal.interrupt()
        assert terminal.is_sane
    os.close(reading)
    os.close(writing)
    there = spool_status(tmp_path / "s").pending
    assert code == 130
    assert terminal.text.rstrip("\n").endswith(f"\n{there:,} spooled")
    assert terminal.text.count("spooled") == 1, "the bar stands for the lines of --progress"


def feed(writing: int, condition: Callable[[], object], terminal: Terminal) -> None:
    """Write lines until a condition is met, with a moment between them."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, terminal.text
        os.write(writing, b'{"domain":"d"}\n' * 10)
        terminal.read()
