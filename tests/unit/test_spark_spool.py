"""View of spool directories in the data source, without a Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from fastjournal.errors import BadRequestError, SpoolFailedError
from fastjournal.protocol import Function, Request, encode_request
from fastjournal.spark.data_source import row_views
from fastjournal.spark.data_source.source import FastjournalSource
from fastjournal.spool import DeadDirectory, Reason, Spool, list_slots
from fastjournal.spool.format import encode_record
from fastjournal.spool.slots import LOCK_NAME, slot_name


def read(directory: Path, **options: str) -> list[dict[str, Any]]:
    source = FastjournalSource({"path": str(directory), "view": "spool"} | options)
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    assert len(partitions) == len(list_slots(directory)) + 1
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["state"], row["offset"] or 0))


def frame_of(key: bytes) -> bytes:
    return encode_request(Request(function=Function.DELETE, key=key, timestamp=5))


def test_spool_view_has_pending_dead_and_suspect_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_views, "BATCH_ROWS", 2)
    with Spool(tmp_path) as spool:
        for number in range(5):
            spool.append(
                domain="web", uri=f"http://x/{number}", priority=7, not_before_us=0, id=str(number),
                value=b"v", timestamp_us=9 + number,
            )  # fmt: skip
    (slot,) = list_slots(tmp_path)
    dead = DeadDirectory(tmp_path)
    dead.put(frame_of(b"k"), Reason(slot.name, 99, 3, "frame", "no-right", "not allowed", 77))
    dead.put(b"junk", Reason(slot.name, 100, 4, "damage", "torn", "cut", 78))
    path = Path(slot.path)
    data = bytearray(path.read_bytes())
    end = len(data)
    junk = encode_record(b"x" * 30)
    # one that was sent, one that is damaged, one that a writer has begun
    first = 8
    size = int.from_bytes(data[first + 1 : first + 5]) + 9
    data[first] = ord("E")
    data[first + size + 20] ^= 1
    path.write_bytes(data + junk[:12])
    rows = read(tmp_path)
    told = [(row["state"], row["id"], row["offset"], row["code"]) for row in rows]
    assert told[:2] == [("dead", None, 99, "no-right"), ("dead", None, 100, "torn")]
    assert [one[:2] for one in told[2:5]] == [("pending", "2"), ("pending", "3"), ("pending", "4")]
    assert told[5:] == [("suspect", None, first + size, None), ("suspect", None, end, None)]
    pending = rows[2]
    assert (pending["function"], pending["key"]) == ("SET", b"web:007:0000000000000000:2")
    assert (pending["domain"], pending["priority"], pending["value"]) == ("web", 7, b"v")
    assert pending["uri"] == b"http://x/2"
    assert pending["timestamp"].microsecond == 11
    assert pending["not_before"] is None
    assert (pending["slot"], pending["file"]) == (slot.name, slot.path)
    assert (rows[0]["function"], rows[0]["key"], rows[0]["put_us"]) == ("DELETE", b"k", 77)
    assert rows[0]["file"].startswith(f"{tmp_path}/dead/")
    assert rows[1]["reason"] == "cut"
    assert [row["size"] for row in rows[5:]] == [size, 12]


def test_spool_view_names_a_slot_that_cannot_be_read_and_a_directory_that_is_none(
    tmp_path: Path,
) -> None:
    other = tmp_path / slot_name(0)
    other.write_bytes(b"fjsp\0\0\0\x09" + encode_record(frame_of(b"k")))
    with pytest.raises(SpoolFailedError, match=str(other)):
        read(tmp_path)
    (row,) = read(tmp_path, mode="permissive", columnNameOfCorruptRecord="bad")
    assert str(other) in row["bad"]
    other.unlink()
    with pytest.raises(BadRequestError, match="is empty"):
        read(tmp_path)
    (tmp_path / LOCK_NAME).touch()
    assert read(tmp_path) == []
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "000000001.log").touch()
    with pytest.raises(BadRequestError, match="its views are records and entries"):
        read(tmp_path / "b")
