"""Bulk load: the state that replay leaves becomes entries, whatever form the keys have."""

from __future__ import annotations

import pytest

from fastjournal.cmdlog.format.envelope import Envelope
from fastjournal.cmdlog.format.layout import pack_position
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry, replayed_entry
from fastjournal.keys import parse_journal_key
from fastjournald.engine.engine import Engine, Settings
from fastjournald.recovery.recover import load_engine
from fastjournald.tables.entry import Entry, EntryState

NOW = 1_700_000_000_000_000
KEYS = [
    b"a:128:%016d:x" % NOW, b"a:128:%016d:y" % (NOW - 1), b"a:128:%016d:z" % (NOW + 1),
    b"a:128:%016d" % NOW, b"a:128:%016dx" % NOW, b"a:128:%015d:short" % 7, b"a:128:%017d:long" % 7,
    b"a:128:%016x:hex" % (10 << 40), b"a:128:99999999999999999999:over",
    b"a:128:18446744073709551615:never", b"a:1:%016d:other priority" % NOW,
    b"a:001:%016d:other form of it" % NOW, b"a:256:%016d:none" % NOW,
    b"a:256:%016d:none again" % NOW, b":128:%016d:no domain" % NOW,
    b"b:128:%016d:other domain" % NOW, b"b:128:%016d:" % NOW, b"b:128::%016d" % NOW, b"plain",
    b"a:128", b"a:128:", b"::", b"\xff:128:%016d:\xff" % NOW,
]  # fmt: skip


@pytest.fixture(params=[1, 2, 1024], autouse=True)
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are made so many at a time."""
    monkeypatch.setattr("fastjournald.recovery.bulk_load.PART_JOBS", request.param)


def a_job(number: int, key: bytes, **fields: object) -> ReplayedEntry:
    parts = parse_journal_key(key)
    not_before = 0 if parts is None else parts.not_before_us
    values = {
        **{"key": key, "uri": None, "links": [], "value_type": 1, "value": b"v"},
        **{"timestamp": 4, "created": 5, "modified": 5, "arrival": number},
        **{"not_before": not_before, "expires": 0, "ttl": 0, "attempts": 0, "token": 0},
        **{"superseded": 0, "reason": None, "first_due": 0, **fields},
    }
    # the number in the id of an entry that is written again is another one than its own
    last = number if number % 2 else number + 1000
    job_id = b"runrunru\x80" + last.to_bytes(7)
    return replayed_entry(Envelope(**values), job_id, pack_position(2, 100 * number), 90)


def loaded(*jobs: ReplayedEntry) -> Engine:
    state = ReplayState()
    for job in jobs:
        state.place(job, NOW)
    state.arrival = len(jobs)
    return load_engine(state, Settings(), lambda *_: 0, seed=bytes(8), now=NOW)


def entry(engine: Engine, key: bytes) -> Entry:
    found = engine.store.find(key)
    assert found is not None
    return found


def test_ids_of_this_version_and_of_older_ones_stay_what_they_are() -> None:
    engine = loaded(*(a_job(number, key) for number, key in enumerate(KEYS)))
    for number, key in enumerate(KEYS):
        last = number if number % 2 else number + 1000
        assert entry(engine, key).job_id == b"runrunru\x80" + last.to_bytes(7)
    kept = [entry(engine, key).run for key in KEYS]
    assert all(run is kept[1] for run in kept[1::2])


def test_bulk_load_leaves_an_entry_ready_where_the_work_on_its_uri_is_over() -> None:
    state = ReplayState()
    state.place(a_job(1, b"a:128:0:at work", token=NOW - 5, uri=b"u"), NOW)
    state.place(a_job(2, b"a:128:0:waits", uri=b"u", timestamp=6), NOW)
    engine = load_engine(state, Settings(), lambda *_: 0, seed=bytes(8), now=NOW)
    engine.check()
    waits = entry(engine, b"a:128:0:waits")
    assert (waits.state, waits.extra.waits_until) == (EntryState.READY, 0)


def test_bulk_load_counts_live_bytes_by_segment_and_evicts_in_the_order_of_the_log() -> None:
    state = ReplayState()
    for number, key in enumerate(KEYS):
        job = a_job(number, key, uri=b"u%d" % number if number % 3 else None)
        job.move_record(pack_position(2 + number // 9, 100 * number))
        state.place(job, NOW)
    rare = a_job(len(KEYS), b"a:128:0:buried", reason=b"why", value=bytes(200))
    rare.move_record(pack_position(9, 0))
    state.place(rare, NOW)
    expected = [sum(number // 9 == part for number in range(len(KEYS))) * 90 for part in range(3)]
    settings = Settings(memory_bytes_max=1 << 30, cold_bytes_min=1)
    engine = load_engine(state, settings, lambda *_: 0, seed=bytes(8), now=NOW)
    engine.check()
    live = engine.journal.usage.live
    assert [live[2], live[3], live[4], live[9]] == [*expected, 90]
    assert engine.journal.records.live_bytes == 90 * (len(KEYS) + 1)
    assert engine.store.values is not None
    assert list(engine.store.values._recent) == [*KEYS, rare.key]
    for number, key in enumerate(KEYS):
        if number % 3:
            assert entry(engine, b"u%d" % number) is entry(engine, key)
