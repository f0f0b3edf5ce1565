"""Event table: a state between two nights that is damaged, or lost."""

from __future__ import annotations

import msgspec
import pytest

from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.history.event_table import EventTable
from fastjournal.spark.history.extractor import EventExtractor, History
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun
from tests.property.test_event_extraction import records_of
from tests.property.test_event_table import (
    EVENTS,
    check_before_the_first,
    check_behind_gaps,
    counts_of,
    rows,
    us_of,
    write,
)


def two_nights() -> tuple[LedgerRun, str]:
    """Return a run whose second night is due, and the path of the state of the first one."""
    run = LedgerRun(EventLedger(5), 60, lambda _: None)
    run.run()
    run.archive_sealed()
    table = EventTable(run.log.disk, EVENTS)
    table.update(ARCHIVE, parallel=2)
    state = f"{EVENTS}/{table.commits[-1].state}"
    run.operations = 60
    run.run()
    run.archive_sealed()
    return run, state


def test_event_table_names_a_state_that_is_damaged_anywhere_and_the_way_out() -> None:
    run, state = two_nights()
    evening = run.log.disk
    (name, *_) = sorted(evening.listdir(state))
    path, data = f"{state}/{name}", evening.read(f"{state}/{name}")
    # each byte changed, each length, and the file missing
    damaged = [data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :] for at in range(len(data))]
    damaged += [data[:at] for at in range(0, len(data), 50)]
    for contents in (None, *damaged[:: max(len(damaged) // 60, 1)]):
        disk = evening.kill()
        disk.unlink(path)
        if contents is not None:
            write(disk, path, contents)
        with pytest.raises(LogCorruptError, match=r"the state of .* create the empty file") as told:
            EventTable(disk, EVENTS).update(ARCHIVE, parallel=2)
        assert told.value.path == path
        assert len(EventTable(disk, EVENTS).commits) == 1


def test_event_table_compares_the_state_of_an_earlier_release_with_no_checksum() -> None:
    run, state = two_nights()
    disk = run.log.disk
    commit = f"{EVENTS}/_commits/000000001.json"
    told = msgspec.json.decode(disk.read(commit))
    del told["state_crc32c"]
    disk.unlink(commit)
    write(disk, commit, msgspec.json.encode(told))
    (name, *_) = sorted(disk.listdir(state))
    data = disk.read(f"{state}/{name}")
    for contents in (b"", data[: len(data) // 2], bytes(len(data))):
        disk.unlink(f"{state}/{name}")
        write(disk, f"{state}/{name}", contents)
        with pytest.raises(LogCorruptError, match=r"the state of .* cannot be understood"):
            EventTable(disk, EVENTS).update(ARCHIVE)
    disk.unlink(f"{state}/{name}")
    write(disk, f"{state}/{name}", data)
    table = EventTable(disk, EVENTS)
    table.update(ARCHIVE)
    counts = run.ledger.counts
    assert counts_of(run, table) == {(day, str(kind)): counts[day, kind] for day, kind in counts}


def test_event_table_goes_on_without_a_state_that_is_lost_and_names_a_gap() -> None:
    run, state = two_nights()
    disk = run.log.disk
    for name in disk.listdir(state):
        disk.unlink(f"{state}/{name}")
    write(disk, f"{state}.lost", b"")
    before = EventTable(disk, EVENTS).taken[-1]
    table = EventTable(disk, EVENTS, segments_a_commit=1)
    table.update(ARCHIVE, parallel=2)
    assert len(table.commits) > 2
    (gap,) = table.gaps
    assert (gap.first, gap.last, gap.reason) == (before.number, before.number, "state-lost")
    assert gap.first_us == gap.last_us == before.last_us
    extractor = EventExtractor(History())
    truth = [
        msgspec.structs.asdict(event)
        for name, data in sorted(run.kept.items())
        for event in extractor.extract(records_of(name, data))
    ]
    found = [
        row | us_of(row) | {"segment": int(path.partition("segment=")[2][:9])}
        for path in table.files
        for row in rows(run, path)
    ]
    check_before_the_first(found, truth, before.number + 1)
    check_behind_gaps(found, truth, set())
    assert not disk.exists(f"{state}.lost")


def test_event_table_begins_whatever_the_power_takes_of_nights_before_its_first_commit() -> None:
    run = LedgerRun(EventLedger(5), 60, lambda _: None)
    run.run()
    run.archive_sealed()
    counts = run.ledger.counts
    expected = {(day, str(kind)): counts[day, kind] for day, kind in counts}
    evening = run.log.disk
    evening.fail_at(50)
    with pytest.raises(LogFailedError):
        EventTable(evening, EVENTS).update(ARCHIVE, parallel=2)
    evening = evening.kill()
    left = [name for name in evening.listdir(EVENTS) if name.startswith("day=")]
    assert left, "and no commit names them"
    for number in range(1, 40):
        for seed in range(4):
            disk = evening.kill()
            disk.fail_at(number)
            with pytest.raises(LogFailedError):
                EventTable(disk, EVENTS).update(ARCHIVE)
            run.log.disk = disk.crash(seed)
            table = EventTable(run.log.disk, EVENTS)
            table.update(ARCHIVE)
            assert counts_of(run, table) == expected
