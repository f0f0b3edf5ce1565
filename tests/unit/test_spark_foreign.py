"""Views of foreign journals in the data source, without a Spark session."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.foreign.journal_files import list_queues
from fastjournal.spark.data_source import row_views
from fastjournal.spark.data_source.source import FastjournalSource

CORPUS = Path(__file__).parent.parent / "format" / "data"


def rows(name: str, **options: str) -> list[dict[str, Any]]:
    options = {"journal": name.partition("/")[0]} | options
    source = FastjournalSource({"path": str(CORPUS / name)} | options)
    schema = source.schema()
    names = schema.fieldNames()
    reader = source.reader(schema)
    partitions = reader.partitions()
    batches: list[pa.RecordBatch] = [
        batch for partition in partitions for batch in reader.read(partition)
    ]
    assert all(batch.schema.names == names for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_entries_view_has_the_jobs_of_beanstalkd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_views, "BATCH_ROWS", 10)
    jobs = json.loads((CORPUS / "beanstalkd" / "killed.json").read_text())["after_restart"]
    found = {row["id"]: row for row in rows("beanstalkd/killed", view="entries")}
    assert set(found) == {f"beanstalkd-{number}" for number in jobs}
    for number, job in jobs.items():
        row = found[f"beanstalkd-{number}"]
        assert (row["domain"], row["priority"]) == (job["tube"], min(job["pri"], 255))
        assert row["value"] == base64.b64decode(job["body_b64"])
        assert (row["reason"] is not None) == (job["state"] == "buried")
        assert row["file"].startswith(f"{CORPUS}/beanstalkd/killed/binlog.")


@pytest.mark.parametrize("view", ["records", "entries"])
@pytest.mark.parametrize(
    "name",
    [
        f"{journal}/{path.name}"
        for journal in ("beanstalkd", "kestrel")
        for path in sorted((CORPUS / journal).iterdir())
        if path.is_dir()
    ],
)
def test_reader_of_a_journal_has_the_same_rows_in_one_partition_and_in_many(
    monkeypatch: pytest.MonkeyPatch, name: str, view: str
) -> None:
    whole = rows(name, view=view, mode="permissive")
    assert count_partitions(name, view) == 1
    monkeypatch.setattr(row_views, "PARTITION_BYTES", 1)
    parts = rows(name, view=view, mode="permissive")
    # each partition ends with its damage
    assert sorted(parts, key=repr) == sorted(whole, key=repr)
    sound = [row for row in whole if row["_corrupt"] is None]
    assert [row for row in parts if row["_corrupt"] is None] == sound
    files = {path.name for path in (CORPUS / name).iterdir()}
    if name.startswith("kestrel/"):
        expected = len(list_queues(OsDisk(), str(CORPUS / name)))
    elif view == "records":
        expected = len([file for file in files if file.startswith("binlog.")])
    else:
        expected = 1
    assert count_partitions(name, view) == expected


def test_partition_of_a_journal_has_queues_up_to_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(name, size) for name, size in zip("abcdefg", (5, 5, 1, 20, 0, 3, 8), strict=True)]
    monkeypatch.setattr(row_views, "PARTITION_BYTES", 10)
    found = row_views._side_by_side(sizes)
    assert [sorted(part) for part in found] == [["a", "b"], ["c"], ["d"], ["e", "f"], ["g"]]
    assert row_views._side_by_side([]) == []


def test_views_have_damage_of_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    for view in ("records", "entries"):
        directory = tmp_path / view
        directory.mkdir()
        options = {"journal": "kestrel", "view": view}
        (directory / "queue").touch()
        (directory / "lost").symlink_to(directory / "missing")
        (row,) = rows(str(directory), mode="permissive", **options)
        assert row["file"] == f"{directory}/lost"
        with pytest.raises(LogCorruptError, match="leads to no file"):
            rows(str(directory), **options)


def count_partitions(name: str, view: str) -> int:
    """Return the number of partitions of a journal."""
    options = {"journal": name.partition("/")[0], "view": view}
    source = FastjournalSource({"path": str(CORPUS / name)} | options)
    return len(list(source.reader(source.schema()).partitions()))


def test_records_view_has_every_record_of_kestrel_and_damage_as_a_row() -> None:
    found = rows("kestrel/state-dump")
    opcodes = {json.loads(row["record"])["opcode"] for row in found}
    assert {"addx", "state_dump"} <= opcodes
    assert {row["value"] is None for row in found} == {True, False}
    with pytest.raises(LogCorruptError) as caught:
        rows("kestrel/bad-opcode")
    assert caught.value.offset == 4325
    last = rows("kestrel/bad-opcode", mode="permissive")[-1]
    assert (last["record"], last["offset"]) == (None, 4325)
    assert "42 is no opcode of Kestrel" in last["_corrupt"]
    assert rows("kestrel/torn")[-1]["record"] is not None


def test_source_names_the_right_format_for_a_wrong_one() -> None:
    for name, journal, text in (
        ("beanstalkd/killed", "kestrel", "the binlog of a beanstalkd"),
        ("workq/basic", "beanstalkd", "the command log of a workq-server"),
        ("kestrel/names", "workq", "the journal of a Kestrel"),
        ("kestrel/names", "redis", "is not one of fastjournal, workq, beanstalkd, kestrel"),
    ):
        with pytest.raises(BadRequestError, match=text):
            FastjournalSource({"path": str(CORPUS / name), "journal": journal}).schema()
    workq = FastjournalSource({"path": str(CORPUS / "workq" / "basic"), "journal": "workq"})
    assert workq.schema().fieldNames()[0] == "segment"
