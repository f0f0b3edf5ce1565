"""Every function of both clients against a real daemon."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fastjournal import (
    BadRequestError,
    RefusedError,
    State,
    SyncClient,
    ValueType,
    build_journal_key,
)
from fastjournal.client import calls
from tests.integration.both_clients import KINDS, AnyClient, all_of, connected
from tests.integration.daemon_process import DaemonProcess

S = 1_000_000
JOB = build_journal_key("d", "1")


@pytest.fixture(params=KINDS)
async def client(daemon: DaemonProcess, request: pytest.FixtureRequest) -> AsyncIterator[AnyClient]:
    async with connected(request.param, daemon.address) as client:
        yield client


@pytest.fixture
def other(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with SyncClient(daemon.address) as client:
        yield client


def refused(code: str) -> pytest.RaisesExc[RefusedError]:
    return pytest.RaisesExc(RefusedError, check=lambda error: error.code == code)


async def test_set_get_delete(client: AnyClient) -> None:
    written = await client.set("k", "one", ttl=60)
    entry = await client.get("k", meta=True)
    assert entry.decoded() == "one"
    assert entry.meta.timestamp_us == written.timestamp_us
    assert entry.meta.state == State.PERSISTENT
    assert (await client.get("k", data=False)).value == b""
    repeated = await client.set("k", "one", timestamp_us=written.timestamp_us)
    assert (written.outcome, repeated.outcome) == ("new", "kept")
    assert repeated.timestamp_us == written.timestamp_us
    with refused("exists"):
        await client.set("k", "two")
    with refused("stale"):
        await client.set("k", "two", overwrite=True, timestamp_us=written.timestamp_us - 1)
    moved = await client.get("k", meta=True, expires=entry.meta.expires_us / S + 60)
    assert moved.meta.expires_us == entry.meta.expires_us + 60 * S
    kept = await client.get("k", meta=True, expires=math.inf)
    assert (kept.meta.expires_us, kept.expires) == (0, None)
    assert (await client.set("k", "3", overwrite=True, ttl=60, expires=math.inf)).outcome == (
        "replaced"
    )
    assert (await client.get("k", meta=True)).expires is None
    await client.delete("k")
    with refused("not-found"):
        await client.get("k")
    with refused("not-found"):
        await client.delete("k")


async def test_deduplication_by_unique_within_a_queue_and_by_uri_over_all(
    client: AnyClient,
) -> None:
    outcomes = [
        (await client.enqueue(queue, "x", **how)).outcome
        for queue, how in [
            ("mails", {"unique": "7"}),
            ("mails", {"unique": "7"}),
            ("search", {"unique": "7"}),
            ("mails", {"uri": "https://example.org/7"}),
            ("search", {"uri": "https://example.org/7"}),
            ("search", {}),
            ("search", {}),
        ]
    ]
    assert outcomes == ["new", "replaced", "new", "new", "replaced", "new", "new"]
    mails = await client.next("mails", count=9)
    assert [(job.unique, job.uri, job.second_key) for job in mails] == [
        (b"7", b"", b"unique:mails:7")
    ]
    searches = await client.next("search", count=9)
    assert [job.unique for job in searches] == [b"7", None, None, None]
    # leased: the newer request waits for the end of the lease, as with a URI
    assert (await client.enqueue("mails", "y", unique="7")).outcome == "new"
    assert not await client.next("mails")
    await client.delete(mails[0].key, token=mails[0].token)
    assert [job.decoded() for job in await client.next("mails")] == ["y"]


async def test_repr_names_the_daemon_and_the_job(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address, auth="a secret") as client:
        assert repr(client) == f"SyncClient({daemon.address!r})"
        key = client.enqueue("mails", "a value").key
        for job in client.jobs("mails", wait=None):
            assert repr(job) == f"<SyncJob {key!r} attempts=0>"
            job.complete()
            assert repr(job) == f"<SyncJob {key!r} attempts=0 ended>"


async def test_enqueue_by_key_replaces_a_waiting_job_and_not_a_leased_one(
    client: AnyClient,
) -> None:
    key = build_journal_key("mails", "daily", priority=5)
    first = await client.enqueue(None, "one", key=key)
    assert (first.key, first.outcome) == (key, "new")
    assert (await client.enqueue(None, "two", key=key)).outcome == "replaced"
    late = await client.enqueue(None, "late", key=key, timestamp_us=first.timestamp_us - 1)
    assert late.outcome == "kept"
    (job,) = await client.next("mails")
    assert job.decoded() == "two"
    with refused("worked-on"):
        await client.enqueue(None, "three", key=key)
    assert await client.touch(key, job.token, ttl=60)
    with refused("exists"):
        await client.set(key, "four")


async def test_enqueue_delays_and_encodes_json(client: AnyClient) -> None:
    await client.enqueue("mails", {"to": ["ann"], "cc": None}, delay=3600, priority=3)
    assert not await client.next("mails")
    await client.enqueue("mails", [1, "zwei"], not_before=datetime(2026, 1, 1, tzinfo=UTC))
    (job,) = await client.next("mails")
    assert (job.value_type, job.value) == (ValueType.STRING, b'[1,"zwei"]')
    stats = await client.domain_stats("mails")
    assert (stats.delayed, stats.worked_on) == (1, 1)
    with pytest.raises(BadRequestError, match="no JSON form"):
        await client.enqueue("mails", {"rate": math.nan})


@pytest.mark.parametrize(
    ("queue", "how", "sentence"),
    [
        ("mails", {"uri": "u", "unique": "v"}, "uri and unique exclude each other"),
        ("mails", {"delay": 1, "not_before": 2e9}, "delay and not_before exclude each other"),
        ("mails", {"key": JOB}, "key excludes queue"),
        (None, {"key": JOB, "priority": 0}, "key excludes queue"),
        (None, {"key": "plain"}, "no key of a job"),
        (None, {}, "neither a queue nor a key"),
        ("a:b", {}, "empty or holds ':'"),
        ("mails", {"uri": "unique:mails:7"}, "reserved"),
        ("mails", {"uri": ""}, "not 1 to 4,096"),
        ("mails", {"unique": ""}, "unique has 0 bytes"),
        ("mails", {"unique": "v" * 4096}, "unique has 4096 bytes, not 1 to 4083"),
        ("mails", {"priority": 256}, "priority"),
    ],
)
def test_enqueue_refuses_arguments_before_it_sends(
    queue: str | None, how: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        calls.enqueue(queue, **how)


async def test_enqueue_many_is_pipelined_and_checked_first(client: AnyClient) -> None:
    key = build_journal_key("mails", "k")
    await client.set(key, "", uri="https://example.org/")
    await client.next("mails")
    jobs = [{"queue": "search", "unique": str(n % 2)} for n in range(4)]
    written = await client.enqueue_many([*jobs, {"queue": None, "key": key}])
    assert [done.outcome for done in written[:4]] == ["new", "new", "replaced", "replaced"]
    assert written[4].code == "worked-on"
    with pytest.raises(TypeError, match="colour"):
        await client.enqueue_many([{"queue": "late"}, {"queue": "late", "colour": 1}])
    assert (await client.domain_stats("late")).entries == 0


async def test_value_is_counted_by_add_and_flipped_by_flip(client: AnyClient) -> None:
    with refused("not-found"):
        await client.add("hits")
    assert (await client.add("hits", create=True)).decoded() == 1
    assert (await client.add("hits", 41)).decoded() == 42
    assert (await client.add("hits", -2, meta=True)).meta.state == State.PERSISTENT
    await client.set("ratio", 0.5)
    assert (await client.add("ratio", 0.25)).decoded() == 0.75
    with refused("type-mismatch"):
        await client.add("ratio", 1)
    with refused("overflow"):
        await client.add("hits", 2**63 - 1)
    await client.set("on", False)
    assert (await client.flip("on")).decoded() is True
    assert (await client.flip("on")).decoded() is False
    with refused("type-mismatch"):
        await client.flip("hits")


async def test_truncate_cuts_and_lengthens(client: AnyClient) -> None:
    await client.set("text", b"abcdef")
    await client.truncate("text", 3)
    assert (await client.get("text")).value == b"abc"
    await client.truncate("text", 5)
    assert (await client.get("text")).value == b"abc\0\0"
    with refused("too-large"):
        await client.truncate("text", 2**40)


async def test_lock_keeps_others_from_writing(client: AnyClient, other: SyncClient) -> None:
    await client.set("k", 1)
    await client.lock("k", timeout=600)
    with refused("locked"):
        other.set("k", 2, overwrite=True)
    assert other.get("k", meta=True).meta.state & State.LOCKED
    assert (other.get("k", meta=True).locked, other.get("k").locked) == (True, None)
    await client.set("k", 2, overwrite=True)
    with refused("not-owner"):
        other.unlock("k")
    await client.unlock("k")
    with refused("not-found"):
        await client.unlock("k")
    other.set("k", 3, overwrite=True)
    with other.locked("k"), refused("locked"):
        await client.add("k", 1)
    assert (await client.add("k", 1)).decoded() == 4


async def test_rename_and_link(client: AnyClient) -> None:
    await client.set("old", "value")
    await client.rename("old", "new")
    with refused("not-found"):
        await client.get("old")
    await client.link("new", "alias")
    with refused("exists"):
        await client.link("new", "alias")
    assert (await client.get("alias")).decoded() == "value"
    await client.set("taken", "other")
    with refused("exists"):
        await client.rename("new", "taken")
    await client.rename("new", "taken", overwrite=True)
    assert (await client.get("taken")).decoded() == "value"


async def test_next_touch_release_and_completion(client: AnyClient) -> None:
    await client.set(JOB, b"work", uri="uri:1")
    (job,) = await client.next("d", lease=60, meta=True)
    assert (job.key, job.uri, job.value) == (JOB, b"uri:1", b"work")
    token = await client.touch(JOB, job.token, ttl=90)
    assert token > job.token
    with refused("lease-lost"):
        await client.delete(JOB, token=job.token)
    with refused("worked-on"):
        await client.get("uri:1", skip_worked_on=True)
    await client.release(JOB, token)
    leased = await client.get("uri:1", lease=60)
    await client.release(JOB, leased.token, delay=3600)
    nothing = await client.next("d")
    assert (len(nothing), nothing.token) == (0, None)
    assert nothing.next_at_us is not None
    await client.set(build_journal_key("d", "2"), b"now")
    (job,) = await client.next("d", wait=60)
    await client.delete(job.key, token=job.token)
    (popped,) = [await client.set(build_journal_key("d", "3"), b"")] and list(
        await client.next("d", delete=True)
    )
    assert popped.token is None


async def test_bury_and_kick(client: AnyClient) -> None:
    for n in range(3):
        await client.set(build_journal_key("d", str(n)))
    (job,) = await client.next("d", lease=60)
    await client.bury(job.key, job.token, reason="it fails")
    assert (await client.entry_stats(job.key)).buried_reason == "it fails"
    await client.bury(build_journal_key("d", "1"))
    await client.bury(build_journal_key("d", "2"))
    assert len(await client.next("d")) == 0
    assert await client.kick(job.key) == 1
    assert await client.kick(job.key) == 0
    assert await client.kick_domain("d") == 1
    assert await client.kick_domain("d", count=9) == 1
    assert len(await client.next("d", count=9)) == 3


async def test_pause_and_resume(client: AnyClient) -> None:
    await client.set(JOB)
    await client.pause("d", 3600)
    assert len(await client.next("d")) == 0
    assert (await client.domain_stats("d")).paused_until_us > 0
    await client.resume("d")
    assert (await client.domain_stats("d")).paused_until is None
    assert len(await client.next("d")) == 1


async def test_pause_all_stops_every_domain_until_all_are_resumed(client: AnyClient) -> None:
    await client.pause_all()
    await client.set(JOB)
    assert len(await client.next()) == len(await client.next("d")) == 0
    assert (await client.daemon_stats()).paused_until == datetime.max.replace(tzinfo=UTC)
    assert (await client.explain(JOB)).daemon_paused_until_us == 2**64 - 1
    with pytest.raises(BadRequestError, match="pause_all"):
        await client.pause("", 60)
    await client.resume_all()
    assert (await client.daemon_stats()).paused_until is None
    assert len(await client.next("d")) == 1


async def test_stats_have_types(client: AnyClient) -> None:
    await client.set(JOB, b"12345", uri="uri:1")
    of_daemon = await client.daemon_stats()
    assert (of_daemon.entries, of_daemon.due) == (1, 1)
    assert of_daemon.log_bytes >= of_daemon.log_live_bytes > 0
    assert of_daemon.uptime_us > 0
    of_domain = await client.domain_stats("d")
    assert (of_domain.entries, of_domain.due, of_domain.worked_on) == (1, 1, 0)
    assert (await client.domain_stats("nobody")).entries == 0
    known = await client.entry_stats("uri:1")
    assert (known.keys, known.state) == ([JOB.decode(), "uri:1"], "ready")
    assert (known.value_bytes, known.persistent) == (5, True)
    raw = await client.stats("uri:1", data=True)
    assert set(raw) <= set(known.__struct_encode_fields__), "a field that entry_stats does not know"
    assert set(await client.stats("d")) <= set(of_domain.__struct_encode_fields__)
    asked_for = {"workers", "workers_cut"}
    known_fields = set(of_daemon.__struct_encode_fields__) - asked_for
    # a daemon without a remote log has none of its fields
    always = {name for name in known_fields if not name.startswith("remote_")}
    assert set(await client.stats()) == always, "a field that daemon_stats does not know"
    assert (await client.daemon_stats(workers=True)).workers == []


async def test_dead_letters_have_their_errors(client: AnyClient) -> None:
    for priority in range(5):
        await client.set(f"d:{priority}:0:x", "v", uri=f"uri:{priority}")
    jobs = await client.next("d", count=3)
    for number, job in enumerate(jobs):
        await client.bury(job.key, token=jobs.token, reason=f"SMTP 55{number}")
    found = await all_of(client, "dead_letters", "d", page=2)
    assert [(dead.key, dead.uri, dead.error) for dead in found] == [
        (b"d:%d:0:x" % number, b"uri:%d" % number, f"SMTP 55{number}") for number in range(3)
    ]
    assert all(dead.state == "buried" and dead.created for dead in found)
    assert await all_of(client, "dead_letters", "none") == []
    with pytest.raises(BadRequestError, match="empty"):
        await all_of(client, "dead_letters", "")


async def test_nop_auth_and_snapshot(client: AnyClient, daemon: DaemonProcess) -> None:
    assert await client.nop() > datetime(2025, 1, 1, tzinfo=UTC)
    await client.auth("whatever: this daemon asks for none")
    taken = [Path(await client.snapshot()) for _ in range(3)]
    assert {path.parent for path in taken} == {daemon.log_path / "snapshots"}
    last = Path(await client.snapshot(keep=2))
    assert sorted(last.parent.iterdir()) == sorted([taken[-1], last])
    with pytest.raises(BadRequestError):
        await client.snapshot(keep=0)


async def test_ranges_prefixes_and_expressions(client: AnyClient) -> None:
    for n in range(25):
        await client.set(f"a:{n:02d}", n)
    await client.set("b", "other", uri="a:uri")
    await client.set(b"a\xff", "behind")

    async def keys(scan: str, *args: str, **kwargs: object) -> list[bytes]:
        return [entry.key for entry in await all_of(client, scan, *args, page=4, **kwargs)]

    numbered = [b"a:%02d" % n for n in range(25)]
    assert await keys("range", "a:03", "a:06") == numbered[3:7]
    assert await keys("prefix", "a:") == [*numbered, b"a:uri"]
    assert await keys("prefix", b"a\xff") == [b"a\xff"]
    assert await keys("regex", "^a:.[05]$") == numbered[::5]
    assert await keys("range", "b") == [b"b"]
    assert len(await keys("range")) == 28
    entries = await all_of(client, "prefix", "a:0", page=4, meta=True)
    assert [entry.decoded() for entry in entries] == list(range(10))
    assert all(entry.meta.state == State.PERSISTENT for entry in entries)
    probed = await all_of(client, "prefix", "a:0", data=False)
    assert {(entry.value_type, entry.value) for entry in probed} == {(ValueType.INTEGER, b"")}
    leased = await all_of(client, "prefix", "a:0", lease=60)
    assert len({entry.token for entry in leased}) == 1
    assert await keys("prefix", "a:", skip_worked_on=True) == [*numbered[10:], b"a:uri"]
    for entry in leased:
        await client.release(entry.key, entry.token)
    with refused("bad-regex"):
        await keys("regex", "(")


async def test_error_names_its_code_key_and_daemon(
    client: AnyClient, daemon: DaemonProcess
) -> None:
    with pytest.raises(RefusedError) as caught:
        await client.get("no such\n\N{SNOWMAN}")
    error = caught.value
    assert (error.code, error.address) == ("not-found", daemon.address)
    assert error.key == "no such\n\N{SNOWMAN}".encode()
    assert str(error) == (
        "not-found: nothing stands under this key"
        f" (key 'no such\\n\N{SNOWMAN}', daemon {daemon.address})"
    )
    (refusal,) = await client.call_many([calls.get("gone")])
    assert (refusal.key, refusal.address) == (b"gone", daemon.address)
    with pytest.raises(RefusedError, match=r"^bad-key: .*key 'd:1', daemon"):
        await client.pause("d:1", 60)
