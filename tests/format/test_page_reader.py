"""docs/cmdlog.md is enough to read the log: a reader made from it finds what the daemon knows."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from fastjournal.cmdlog.format import operation_records
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.protocol.constants import Flag, Function, State, ValueType
from fastjournal.protocol.messages import Reply
from fastjournal.testing.workq_rules import assert_workq_accepts
from fastjournald.config.options import Config
from tests.format import page_reader
from tests.format.page_reader import HEADER, DamageError, Entry, Log, parse_key
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import SILENCE_S, RawClient, build, set_request
from tests.property.crashing_daemon import LOG, CrashingDaemon

HOUR = 3_600_000_000
POLL_S = 0.01
ROUNDS = 3
SEEDS = 60
TAGS = {msgspec.inspect.type_info(kind).tag for kind in get_args(operation_records.Operation)}


# --- a real daemon ------------------------------------------------------------------------------


def ask(
    client: RawClient, function: int, key: bytes = b"", value: Any = None, **fields: Any
) -> Reply:
    """Ask, and see that it is done."""
    request = build(function, key, value, **fields)
    reply = client.ask(request)
    assert not reply.code, f"{Function(function).name} {key!r}: {reply.error}"
    return reply


def number(value: bytes) -> dict[str, Any]:
    return {"value_type": ValueType.INTEGER, "value": value}


def lease(client: RawClient, key: bytes) -> int:
    token = ask(client, Function.GET, key, flags=Flag.DATA, timeout=HOUR).timeout
    assert token is not None
    return token


def ask_every_function(client: RawClient) -> None:
    """One request of every function at least; in the end something stands of every kind."""
    keep = Flag.PERSIST
    held: dict[str, Any] = {"flags": Flag.WORKED_ON}
    for serial in range(12):
        key = b"work:%d:0:%d" % (100 + serial % 3, serial)
        ask(client, Function.SET, key, b"v" * serial, uri=b"uri/%d" % serial, flags=keep)
    ask(client, Function.SET, b"work:1:0:later", b"v", flags=keep, ttl=HOUR)
    ask(client, Function.SET, b"volatile", b"in memory only")
    ask(client, Function.DELETE, b"volatile", flags=keep)
    ask(client, Function.SET, b"volatile:1:0:x", b"in memory only")
    # values
    for key, kind, value in (
        (b"count", ValueType.INTEGER, b"\0\0\0\5"),
        (b"flag", ValueType.BOOLEAN, b"\1"),
        (b"text", ValueType.STRING, b"a longer text"),
    ):
        request = set_request(key, value)
        request.value_type = kind
        assert client.ask(request).code == ""
    for function, key, value in (
        (Function.ADD, b"count", b"\7"),
        (Function.NOT, b"flag", None),
        (Function.TRUNCATE, b"text", b"\4"),
    ):
        request = build(function, key, value)
        request.value_type = None if value is None else ValueType.INTEGER
        assert client.ask(request).code == ""
    ask(client, Function.SET, b"count2", b"replaced by what follows", flags=keep)
    ask(client, Function.SET, b"count2", b"new", flags=keep | Flag.OVERWRITE)
    # names and locks
    ask(client, Function.LINK, b"count", uri=b"count/link")
    ask(client, Function.RENAME, b"text", uri=b"named:7:0:text", flags=keep)
    ask(client, Function.RENAME, b"work:100:0:3", uri=b"count2", flags=keep | Flag.OVERWRITE)
    ask(client, Function.LOCK, b"flag", timeout=HOUR)
    ask(client, Function.UNLOCK, b"flag")
    # work: completed, released, extended, superseded, set aside
    token = lease(client, b"work:100:0:0")
    ask(client, Function.DELETE, b"work:100:0:0", timeout=token, **held)
    for key, ttl in ((b"work:101:0:1", None), (b"work:102:0:2", HOUR)):
        ask(client, Function.RELEASE, key, timeout=lease(client, key), ttl=ttl, **held)
    failed = build(
        Function.RELEASE,
        b"work:101:0:10",
        b"error",
        timeout=lease(client, b"work:101:0:10"),
        ttl=HOUR,
        **held,
    )
    failed.value_type = ValueType.STRING
    assert client.ask(failed).code == ""
    token = lease(client, b"work:101:0:4")
    ask(client, Function.TOUCH, b"work:101:0:4", timeout=token, ttl=2 * HOUR, **held)
    lease(client, b"work:102:0:5")
    ask(client, Function.SET, b"work:9:0:newer", b"takes the URI", uri=b"uri/5", flags=keep)
    ask(client, Function.SET, b"work:8:0:newest", b"and again", uri=b"uri/6", flags=keep)
    ask(
        client,
        Function.BURY,
        b"work:101:0:7",
        b"why",
        timeout=lease(client, b"work:101:0:7"),
        **held,
    )
    for key in (b"work:102:0:8", b"work:100:0:9", b"count2"):
        ask(client, Function.BURY, key, b"first")
    ask(client, Function.BURY, b"work:102:0:8", b"second")
    ask(client, Function.KICK, b"work:100:0:9")
    ask(client, Function.KICK, b"", uri=b"none", count=3)
    ask(client, Function.TOUCH, b"flag", ttl=2 * HOUR)
    ask(client, Function.GET, b"count", timeout=10**15 * 9, flags=Flag.UPDATE_TIMEOUT)
    ask(client, Function.NEXT, b"work", count=2, timeout=3 * HOUR)
    ask(client, Function.NEXT, b"work", count=2, flags=Flag.OVERWRITE)
    ask(client, Function.PAUSE, b"work", ttl=HOUR)
    ask(client, Function.PAUSE, b"other", ttl=HOUR)
    ask(client, Function.PAUSE, b"other", ttl=0)
    limits = build(Function.LIMIT, b"limited", b'{"interval_us": 1, "jobs": 1000}')
    limits.value_type = ValueType.STRING
    assert client.ask(limits).code == ""
    # what is gone: deleted, deleted without trace, run out
    ask(client, Function.SET, b"gone", b"v", flags=keep)
    ask(client, Function.DELETE, b"gone")
    assert (
        client.ask(build(Function.DELETE, b"gone", flags=keep | Flag.OVERWRITE)).code == "not-found"
    )
    ask(client, Function.SET, b"gone", b"v", flags=keep)
    ask(client, Function.DELETE, b"gone", flags=Flag.OVERWRITE)
    ask(client, Function.SET, b"life:1:0:short", b"v", flags=keep, ttl=1)
    ask(client, Function.SET, b"lease:1:0:short", b"v", flags=keep)
    ask(client, Function.GET, b"lease:1:0:short", timeout=1)
    for function in (Function.NOP, Function.STATS, Function.AUTH, Function.SNAPSHOT):
        ask(client, function, value=b"token" if function == Function.AUTH else None)


def fill(client: RawClient, seed: int) -> None:
    """Make segments that are worth cleaning."""
    draw = random.Random(seed)
    for serial in range(400):
        key = b"fill:5:0:%d" % draw.randrange(40)
        ask(client, Function.SET, key, draw.randbytes(60), flags=Flag.PERSIST | Flag.OVERWRITE)
        if serial % 3 == 0:
            client.ask(build(Function.BURY, b"fill:5:0:%d" % draw.randrange(40), b"why"))
        if serial % 5 == 0:
            client.ask(build(Function.KICK, b"", uri=b"fill", count=2))


def listed(client: RawClient) -> tuple[int, dict[bytes, dict[str, Any]]]:
    """Return the daemon's clock, and what it lists under every key that leads to the log."""
    every = Flag.META | Flag.DATA
    reply = ask(client, Function.GET, uri=b"", count=0, flags=every)
    assert reply.cursor is None
    found = {}
    for pair in reply.pairs or ():
        meta = pair.meta
        assert meta is not None
        if meta.state & State.PERSISTENT:
            found[pair.key] = {
                "keys": {pair.key, pair.second_key or pair.key},
                "value": (pair.value_type, pair.value),
                "times": (meta.timestamp_us, meta.created_us, meta.modified_us),
                "life": (meta.expires_us, meta.ttl_us),
                "work": (meta.worked_on_until_us, meta.not_before_us, meta.attempts, meta.priority),
                "buried": bool(meta.state & State.BURIED),
            }
    return reply.timestamp, found


def read(log: Log, now: int) -> dict[bytes, dict[str, Any]]:
    """Return the same of what a reader found."""
    log.advance(now)
    found = {}
    for key, entry in log.keys.items():
        second = entry.uri if log.keys.get(entry.uri or b"") is entry else None
        other = (second or entry.key) if key == entry.key else entry.key
        parts = parse_key(entry.key)
        found[key] = {
            "keys": {key, other},
            "value": (entry.value_type, entry.value),
            "times": (entry.timestamp, entry.created, entry.modified),
            "life": (entry.expires, entry.ttl),
            "work": (entry.token, entry.not_before, entry.attempts, parts[1] if parts else 0),
            "buried": entry.reason is not None,
        }
    return found


def assert_same(
    read_: dict[bytes, dict[str, Any]], found: dict[bytes, dict[str, Any]], now: int
) -> None:
    """Assert that entries read are the ones listed, but for the expiry that the listing moves."""
    for key, entry in found.items():
        expires, ttl = entry["life"]
        if ttl and key in read_:
            assert read_[key]["life"][0] <= expires <= now + ttl
            read_[key]["life"] = (expires, ttl)
    assert read_ == found


def is_cleaned(daemon: DaemonProcess) -> bool:
    """Whether it has rewritten a segment and removed one."""
    said = daemon.said()
    gone = "outcome='moved'" in said or "outcome='removed'" in said
    return gone and "outcome='rewritten'" in said


def test_reader_written_from_the_page_finds_what_a_real_daemon_lists(tmp_path: Path) -> None:
    options = ("--cmdlog-seg-size", "4096", "--cmdlog-clean-int", "20")
    deadline = time.monotonic() + SILENCE_S
    with DaemonProcess(tmp_path, *options) as daemon:
        with RawClient(daemon.address) as client:
            ask_every_function(client)
            rounds = 0
            while rounds < ROUNDS or not is_cleaned(daemon):
                assert time.monotonic() < deadline, "it never rewrote and removed segments"
                rounds += 1
                fill(client, rounds)
                log = Log()
                log.read(daemon.log_path)
                now, found = listed(client)
                assert_same(read(log, now), found, now)
                assert len(found) > 50
                stats = client.ask(build(Function.STATS)).pairs
                assert stats is not None
                counts = msgspec.json.decode(stats[0].value)
                due = [entry for entry in log.waiting() if log.due_at(entry) <= now]
                # one is in memory only
                assert counts["waiting"] == len(log.waiting()) + 1
                assert counts["due"] == len(due) + 1
                assert log.pauses[b"work"] > now
                assert log.limits[b"limited"] == [1, 1000, 0, 0]
        daemon.kill()
        killed = Log()
        killed.read(daemon.log_path)
        daemon.start()
        with RawClient(daemon.address) as client:
            now, found = listed(client)
            assert_same(read(killed, now), found, now)
            # the order of work is that of NEXT
            ask(client, Function.PAUSE, b"work", ttl=0)
            waiting = [entry.key for entry in killed.waiting() if killed.due_at(entry) <= now]
            for domain in (b"work", b"fill", b"lease", b"named"):
                popped = ask(client, Function.NEXT, domain, count=500, flags=Flag.OVERWRITE)
                keys = [pair.key for pair in popped.pairs or ()]
                assert keys == [key for key in waiting if key.startswith(domain + b":")]
                assert keys
        assert daemon.stop() == 0
    assert_workq_accepts(daemon.log_path)


# --- many daemons on a simulated disk ----------------------------------------------------------


def segments(daemon: CrashingDaemon) -> dict[int, bytes]:
    names = [name for name in daemon.disk.listdir(LOG) if name.endswith(".log")]
    return {int(name[:9]): daemon.disk.read(f"{LOG}/{name}") for name in names}


def replayed(daemon: CrashingDaemon) -> dict[bytes, dict[bytes, dict[str, Any]]]:
    """Return the result of the library's own replay: the entry under every key, with its job id."""
    state = recover(daemon.disk.kill(), LOG, now_us=daemon.clock.instant_us).state
    ids = {id(job): job_id for job_id, job in state.jobs.items()}
    return {key: {ids[id(job)]: fields_of(job)} for key, job in state.keys.items()}


def fields_of(entry: Any) -> dict[str, Any]:
    # the last two are for the history
    others = ("erases", "due", "origin")
    names = [field.name for field in dataclasses.fields(Entry) if field.name not in others]
    rest = getattr(entry, "more", entry)
    fields = {name: getattr(entry if hasattr(entry, name) else rest, name) for name in names}
    return {**fields, "links": list(entry.links), "taken": list(rest.taken)}


def read_simulated(data: dict[int, bytes]) -> tuple[Log, dict[bytes, dict[bytes, dict[str, Any]]]]:
    log = Log()
    log.replay(data)
    ids = {id(entry): job_id for job_id, entry in log.jobs.items()}
    return log, {key: {ids[id(entry)]: fields_of(entry)} for key, entry in log.keys.items()}


def test_page_reader_finds_what_the_library_finds_after_clients_and_compaction() -> None:
    met: set[str | int] = set()
    for seed in range(SEEDS):
        draw = random.Random(seed)
        config = Config(cmdlog_path=LOG, cmdlog_seg_size=draw.choice((600, 2500, 100_000)))
        config.default_lease = 20
        config.max_attempts = draw.choice((0, 2))
        daemon = CrashingDaemon(seed, config, exact=seed % 3 > 0)
        for _ in range(4):
            daemon.live(30)
            daemon.writer.write()
            log, found = read_simulated(segments(daemon))
            assert found == replayed(daemon), seed
            limits = daemon.engine.store.rules.limits
            for name in limits._last:
                assert log.deliveries[name] == limits.last_delivery(name), seed
            met |= log.met
    assert met >= {command.value for command in Command} | TAGS, "not everything was read"


def test_page_reader_finds_what_the_library_finds_wherever_the_end_is_torn() -> None:
    for seed in range(SEEDS // 2):
        config = Config(cmdlog_path=LOG, cmdlog_seg_size=100_000)
        daemon = CrashingDaemon(seed, config, exact=True)
        daemon.live(40)
        daemon.writer.write()
        # what is on the disk by then does not tear
        kept = segments(daemon)
        for _ in range(20):
            daemon.ask()
        daemon.writer.write()
        data = segments(daemon)
        last = max(data)
        ends = range(len(kept.get(last, HEADER)), len(data[last]))
        for cut in sorted(daemon.draw.sample(ends, min(12, len(ends))), reverse=True):
            daemon.disk.truncate(f"{LOG}/{last:09}.log", cut)
            _, found = read_simulated({**data, last: data[last][:cut]})
            assert found == replayed(daemon), (seed, cut)


def test_page_reader_distinguishes_damage_from_a_torn_end() -> None:
    daemon = CrashingDaemon(1, Config(cmdlog_path=LOG, cmdlog_seg_size=600), exact=True)
    while len(data := segments(daemon)) < 3:
        daemon.live(10)
        daemon.writer.write()
    first, second, *_ = sorted(data)
    torn = {**data, first: data[first][:-1]}
    missing = {number: data[number] for number in data if number != second}
    for broken in (torn, missing):
        with pytest.raises(DamageError):
            Log().replay(broken)


def test_page_reader_imports_nothing_of_the_library() -> None:
    source = Path(page_reader.__file__).read_text(encoding="utf-8")
    modules = re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE)
    assert not {"fastjournal", "fastjournald", "fj_cli", "tests"} & set(modules)
