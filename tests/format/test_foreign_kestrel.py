"""Journals of Kestrel as items: what an import of them starts from."""

from __future__ import annotations

import base64
import json
import os
import socket
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import pytest
from sortedcontainers import SortedList

from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.foreign import Fault, kestrel_records, open_kestrel
from fastjournal.foreign.formats import Format, require_format
from fastjournal.foreign.items import domain_of, name_of
from fastjournal.foreign.kestrel_records import Opcode8, OpenTransactions, encode_addx
from fastjournal.testing.disk import SimulatedDisk

CORPUS = Path(__file__).parent / "data" / "kestrel"
QUEUES = "/queues"
REMOVE, REMOVE_TENTATIVE = b"\1", b"\3"


def a_disk(**files: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir(QUEUES)
    for name, data in files.items():
        disk.create(f"{QUEUES}/{name}").write(data)
    return disk


def add(value: bytes, added_ms: int = 5) -> bytes:
    return encode_addx(value, added_ms, 0)


def with_xid(opcode: int, xid: int) -> bytes:
    return bytes((opcode,)) + xid.to_bytes(4, "little")


def add_xid(opcode: int, xid: int, value: bytes) -> bytes:
    return with_xid(opcode, xid) + add(value)[1:]


def waiting(data: bytes, opcode8: Opcode8 = "auto") -> tuple[list[bytes], list[Fault]]:
    with open_kestrel(a_disk(q=data), QUEUES, opcode8=opcode8) as journal:
        return [item.value for item in journal.items()], journal.faults


@pytest.mark.parametrize("name", sorted(path.stem for path in CORPUS.glob("*.json")))
def test_replay_gives_the_items_that_kestrel_has_at_the_end(name: str) -> None:
    recorded = json.loads((CORPUS / f"{name}.json").read_text())["queues"]
    expected = [
        (
            domain_of(queue.encode()),
            (item["added_ms"] or 0) * 1000,
            item["expiry_ms"] * 1000,
            base64.b64decode(item["data_b64"]),
        )
        for queue in sorted(recorded, key=str.encode)
        for item in recorded[queue]
    ]
    with open_kestrel(OsDisk(), str(CORPUS / name)) as journal:
        items = list(journal.items())
        assert journal.count == len(items)
        assert sum(queue.items for queue in journal.queues) == len(items)
        faults = [(Path(fault.path).name, fault.offset, fault.damage) for fault in journal.faults]
    found = []
    for item in items:
        domain, priority, instant, rest = item.key.split(b":", 3)
        assert (priority, item.timestamp, item.reason) == (b"128", int(instant) or 1, None)
        assert rest.startswith(b"kestrel-")
        found.append((domain, int(instant), item.expires, item.value))
    assert found == expected
    assert len({item.key for item in items}) == len(items)
    torn = [37, 218, 2758, 663, 3465, 2751]
    expected_faults = {
        "bad-opcode": [("bad", 4325, True)],
        "torn": [(f"torn{number}", offset, False) for number, offset in enumerate(torn)],
    }
    assert faults == expected_faults.get(name, [])


def test_removal_that_is_tentative_takes_the_xid_of_the_item_or_the_next_free_one() -> None:
    records = add_xid(7, 3, b"named") + REMOVE_TENTATIVE + with_xid(4, 2)
    records += add(b"next free") + REMOVE_TENTATIVE
    # 3 is open, so the free one is 4
    assert waiting(records + with_xid(6, 3)) == ([b"next free"], [])
    assert waiting(records + with_xid(6, 4)) == ([b"named"], [])
    assert waiting(records + with_xid(6, 5)) == ([b"named", b"next free"], [])
    # back at the head it has no xid any more
    back = records + with_xid(5, 3) + REMOVE_TENTATIVE + with_xid(6, 5)
    assert waiting(back) == ([b"next free"], [])


def test_removals_from_an_empty_queue_and_of_unknown_transactions_change_nothing() -> None:
    records = REMOVE + REMOVE_TENTATIVE + with_xid(9, 1) + with_xid(5, 7) + with_xid(6, 7)
    assert waiting(records + add(b"stays")) == ([b"stays"], [])


def test_opcode_8_is_what_makes_the_rest_of_the_file_parse() -> None:
    opened = add(b"done") + with_xid(9, 1)
    continued = opened + add_xid(8, 1, b"added") + add(b"last")
    assert waiting(continued) == ([b"added", b"last"], [])
    pair = add_xid(7, 1, b"done") + REMOVE_TENTATIVE
    dumped = opened + with_xid(8, 1) + (1).to_bytes(4, "little") + pair
    assert waiting(dumped) == ([b"done"], [])
    assert waiting(opened + with_xid(8, 1) + bytes(4)) == ([b"done"], [])
    # cut short, it is still no continue
    assert waiting(dumped[:-3]) == ([b"done"], [])
    assert waiting(continued[:-3])[0] == [b"added"]


def test_opcode_8_can_be_forced() -> None:
    records = add(b"done") + with_xid(9, 1) + add_xid(8, 1, b"added")
    assert waiting(records, "continue") == ([b"added"], [])
    assert waiting(records, "state-dump") == ([b"done"], [])
    dump = with_xid(8, 1) + bytes(4)
    (fault,) = waiting(add(b"first") + dump, "continue")[1]
    assert fault.offset == len(add(b"first"))


def looked_at(data: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Fault]]:
    """Return how many records were read, and the faults."""
    read = Mock(wraps=kestrel_records.read_record)
    monkeypatch.setattr(kestrel_records, "read_record", read)
    _, faults = waiting(data)
    return read.call_count, faults


def continued_with_a_pair(value_bytes: int, pair_bytes: int) -> bytes:
    """Return a continue whose bytes behind the size are an ADD_XID of another size too."""
    times = bytes((7, *(1).to_bytes(4, "little"), *(pair_bytes + 16).to_bytes(4, "little")))
    value = times + bytes(16)
    return with_xid(8, 1) + (value_bytes + 25).to_bytes(4, "little") + value + bytes(value_bytes)


def test_opcode_8_looks_ahead_over_the_rest_of_a_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # the pair that may follow is cut short by the end of the file, in every record
    record = continued_with_a_pair(9, 1 << 30)
    calls, faults = looked_at(record * 500, monkeypatch)
    assert not faults
    assert calls < 5 * 500


def test_opcode_8_is_a_fault_where_its_look_ahead_would_read_a_file_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value_bytes = 20_000
    record = continued_with_a_pair(value_bytes, value_bytes + 9)
    size = 150
    calls, (fault,) = looked_at(record * size + add(bytes(100)), monkeypatch)
    assert "'fj-cli import kestrel --opcode-8' sets one" in fault.message
    assert fault.damage
    assert calls < 5 * size
    assert not waiting(record * size + add(b""), "continue")[1]


def test_removal_that_is_tentative_finds_a_free_xid_in_a_few_looks() -> None:
    looks = 0

    class Counted(SortedList):
        def __getitem__(self, place: int) -> int:
            nonlocal looks
            looks += 1
            return int(super().__getitem__(place))

    opened = OpenTransactions()
    opened._xids = Counted()
    for number in range(1000):
        # the counter is set back each time
        xid = opened.free_xid(0)
        assert xid == number + 1
        opened.put(xid, b"item")
    assert looks < 1000 * 20
    assert opened.pop(500) == b"item"
    assert (opened.free_xid(0), opened.free_xid(500)) == (500, 1001)
    opened.put(0xFFFFFFFF, b"last")
    assert opened.free_xid(0xFFFFFFFE) == 500


def test_damage_ends_a_file_and_the_next_one_is_read() -> None:
    disk = a_disk(**{"q.1": add(b"one") + b"\xff" + add(b"lost"), "q": add(b"two")})
    with open_kestrel(disk, QUEUES) as journal:
        assert [item.value for item in journal.items()] == [b"one", b"two"]
        (fault,) = journal.faults
    assert (fault.path, fault.offset, fault.damage) == (f"{QUEUES}/q.1", len(add(b"one")), True)
    negative = b"\2" + (-5 & 0xFFFFFFFF).to_bytes(4, "little") + bytes(16)
    assert "less than its times" in waiting(negative)[1][0].message


def test_domains_are_escaped_names_and_no_two_queues_become_one_domain() -> None:
    names = [b"q", b"a:b", b"a%3Ab", b"a%253Ab", b"per%cent", b"%", b"q+fan"]
    domains = [domain_of(name) for name in names]
    assert len(set(domains)) == len(names)
    assert not any(b":" in domain for domain in domains)
    assert [name_of(domain) for domain in domains] == names
    assert name_of(b"100%") == b"100%"


def test_memory_holds_no_values() -> None:
    disk = a_disk(**{f"q.{number}": add(bytes(1_000_000)) * 10 for number in range(5)})
    tracemalloc.start()
    try:
        with open_kestrel(disk, QUEUES) as journal:
            assert sum(len(item.value) for item in journal.items()) == 50_000_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_record_that_changed_since_it_was_read_is_an_error_with_its_place(how: str) -> None:
    disk, at = a_disk(q=add(b"first", 5) + add(b"second", 5)), len(add(b"first", 5))
    with open_kestrel(disk, QUEUES) as journal:
        if how == "cut":
            disk.truncate(f"{QUEUES}/q", at + 3)
        else:
            disk.unlink(f"{QUEUES}/q")
            disk.create(f"{QUEUES}/q").write(add(b"first", 5) + add(b"other!", 6))
        with pytest.raises(LogCorruptError, match=None if how == "cut" else "changed") as caught:
            list(journal.items())
    assert (caught.value.path, caught.value.offset) == (f"{QUEUES}/q", at)


def test_error_for_a_directory_of_another_format_names_it() -> None:
    disk = a_disk(**{"binlog.1": b"\7\0\0\0"})
    with pytest.raises(BadRequestError, match="beanstalkd"), open_kestrel(disk, QUEUES):
        pass
    for files in ({}, {"q~~1": add(b"v")}):
        no_journal = pytest.raises(BadRequestError, match="no journal")
        with no_journal, open_kestrel(a_disk(**files), QUEUES):
            pass


def test_link_that_leads_nowhere_is_damage_with_its_path_and_hides_no_queue(
    tmp_path: Path,
) -> None:
    (tmp_path / "lost").symlink_to(tmp_path / "missing")
    (tmp_path / "queue").write_bytes(add(b"v"))
    (tmp_path / "queue.5").symlink_to(tmp_path)
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with open_kestrel(OsDisk(), str(tmp_path)) as journal:
        assert [item.value for item in journal.items()] == [b"v"]
        places = [(fault.path, fault.offset, fault.damage) for fault in journal.faults]
    assert places == [(f"{tmp_path}/{name}", 0, True) for name in ("lost", "queue.5", "round")]
    assert "a link that leads to no file" in journal.faults[0].message


def test_socket_and_fifo_are_no_journals_and_hide_none(tmp_path: Path) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/daemon.sock")
    with pytest.raises(BadRequestError, match="no journal"), open_kestrel(disk, directory):
        pass
    with pytest.raises(BadRequestError, match=r"no segment") as caught:
        require_format(disk, directory, Format.FASTJOURNAL)
    assert "--cmdlog-path" in str(caught.value.hint)
    (tmp_path / "queue").write_bytes(add(b"v"))
    with open_kestrel(disk, directory) as journal:
        assert [item.value for item in journal.items()] == [b"v"]
