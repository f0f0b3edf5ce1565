"""Snapshots as Parquet, without Spark: what is in it, and that it is whole or not there."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from fastjournal.cmdlog.format.layout import SegmentInfo, segment_name
from fastjournal.cmdlog.locks import list_segments
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError, LogFailedError
from fastjournal.spark.export import entry_sort, snapshot_export
from fastjournal.spark.export.snapshot_export import export_snapshot
from fastjournal.spark.live_entries import entry_parts
from fastjournal.spark.live_entries.entry_parts import find_parts, reading
from fastjournal.spark.storage.files import LogDirectory
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.live_snapshots import take_live_snapshot
from tests.spark.random_logs import by_position, replayed, write_random_log

TAKEN_US = 1_795_165_406_070_796


def snapshot_of(log: Path, where: Path) -> Path:
    infos = []
    for number in list_segments(OsDisk(), str(log)):
        size = (log / f"{number:09d}.log").stat().st_size
        infos.append(SegmentInfo(number, size, 0, None, None, 1))
    return Path(take_snapshot(OsDisk(), str(log), str(where), infos, TAKEN_US))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    write_random_log(tmp_path / "log", 11, segments=5, records=80)
    return take_live_snapshot(tmp_path / "log", tmp_path / "snapshots", taken_us=TAKEN_US)


def damage_an_entry(snapshot: Path) -> Path:
    """Change a byte of the record of a live entry, and return its segment."""
    (part,) = find_parts(str(snapshot))
    assert part.live is not None
    with reading(LogDirectory(snapshot).files, str(snapshot / "LIVE")) as read:
        found = {number: part.live.read_records(read, number).offsets for number in range(1, 6)}
    number, offset = next((number, offsets[0]) for number, offsets in found.items() if offsets)
    path = snapshot / segment_name(number)
    data = bytearray(path.read_bytes())
    data[offset + 30] ^= 0x55
    path.unlink()
    path.write_bytes(data)
    return path


def exported(destination: Path) -> list[tuple[Any, ...]]:
    table = pq.read_table(destination)
    return by_position(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


@pytest.mark.parametrize("processes", [1, 2])
def test_export_equals_the_replay(
    processes: int, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_parts, "PART_BYTES", 1000)
    steps: list[tuple[int, int]] = []
    manifest = export_snapshot(
        snapshot,
        tmp_path / "out",
        processes=processes,
        on_progress=lambda done, size: steps.append((done, size)),
    )
    expected = replayed(snapshot)
    assert exported(tmp_path / "out") == expected
    domains = pq.read_table(tmp_path / "out").column("domain").to_pylist()
    assert domains == sorted(domains, key=lambda domain: domain or "")
    assert manifest.rows == len(expected) == manifest.files[0].rows
    assert steps == sorted(steps)
    assert len(steps) > 5
    assert steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize("call", ["new_file", "open_file"])
def test_export_on_a_full_temporary_disk_names_the_temporary_directory(
    call: str, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(pa.ipc, call, full)
    told = rf"{scratch}/.*: cannot sort the entries: .*No space left .*set TMPDIR to "
    with pytest.raises(LogFailedError, match=told) as caught:
        export_snapshot(snapshot, tmp_path / "out", processes=1, scratch=scratch)
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.glob("out/*")) == list(scratch.iterdir()) == []


def test_export_whose_process_is_killed_says_what_to_change(snapshot: Path, tmp_path: Path) -> None:
    def kill(*_: int) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(LogFailedError, match=r"was ended from outside \(free memory, or call "):
        export_snapshot(snapshot, tmp_path / "out", processes=2, on_progress=kill)
    assert list(tmp_path.glob("out/*")) == []


def test_row_groups_end_at_their_rows_and_bytes(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_export, "ROW_GROUP_ROWS", 4)
    rows = export_snapshot(snapshot, tmp_path / "out").rows
    found = pq.ParquetFile(tmp_path / "out" / f"entries-{snapshot.name}.parquet")
    assert found.metadata.num_row_groups == -(-rows // 4) > 2


def test_export_begins_another_file_behind_the_bytes_that_an_object_store_can_rename(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(snapshot_export, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(snapshot_export, "FILE_BYTES", 1500)
    for name in ("GROUP_BYTES", "RANGE_BYTES"):
        monkeypatch.setattr(entry_sort, name, 500)
    files = export_snapshot(snapshot, out).files
    stem = f"entries-{snapshot.name}"
    names = [
        f"{stem}.parquet",
        *(f"{stem}-{number + 2}.parquet" for number in range(len(files) - 1)),
    ]
    assert len(files) > 2
    assert [file.name for file in files] == names
    tables = [pq.read_table(out / name) for name in names]
    assert [len(table) for table in tables] == [file.rows for file in files]
    assert 0 not in [file.rows for file in files]
    assert exported(out) == replayed(snapshot)
    monkeypatch.undo()
    # the manifest names all of them, so that the next export removes what it has not
    export_snapshot(snapshot, out)
    assert {path.name for path in out.iterdir()} == {names[0], "_manifest.json", "_SUCCESS"}
    assert exported(out) == replayed(snapshot)


def test_failed_export_leaves_the_one_before_it(snapshot: Path, tmp_path: Path) -> None:
    export_snapshot(snapshot, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    path = damage_an_entry(snapshot)
    with pytest.raises(LogCorruptError, match=rf"{path.name} at offset \d+"):
        export_snapshot(snapshot, tmp_path / "out")
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("[!_]*")}
    assert after.items() <= before.items()
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert exported(tmp_path / "out")


def test_directory_with_other_files_is_refused(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    with pytest.raises(BadRequestError, match=r"precious.txt"):
        export_snapshot(snapshot, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious.txt"]


def test_export_refuses_a_snapshot_that_is_not_whole(snapshot: Path, tmp_path: Path) -> None:
    with pytest.raises(LogCorruptError, match="no manifest"):
        export_snapshot(tmp_path / "log", tmp_path / "out")
    (tmp_path / "garbled").mkdir()
    (tmp_path / "garbled" / "MANIFEST.json").write_bytes(b'{"format": "\xff"}')
    with pytest.raises(LogCorruptError, match="not a file of format"):
        export_snapshot(tmp_path / "garbled", tmp_path / "out")
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "_manifest.json").write_bytes(b'{"snapshot": "\xff"}')
    with pytest.raises(BadRequestError, match="not a file of format"):
        export_snapshot(snapshot, tmp_path / "earlier")
    for change in ("shorter", "missing", "unlisted"):
        copy = tmp_path / change
        copy.mkdir()
        for path in snapshot.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        if change == "shorter":
            (copy / "000000005.log").write_bytes((copy / "000000005.log").read_bytes()[:-1])
        elif change == "missing":
            (copy / "000000005.log").unlink()
        else:
            (copy / "000000006.log").write_bytes(bytes(SegmentBuilder(5)))
        with pytest.raises(LogCorruptError, match=r"00000000[56].log: .*manifest"):
            export_snapshot(copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_export_into_a_snapshot_or_nowhere_is_refused(snapshot: Path, tmp_path: Path) -> None:
    before = sorted(snapshot.iterdir())
    (tmp_path / "link").symlink_to(snapshot)
    for place in (snapshot, snapshot / "a" / "b", tmp_path / "link" / "a", f"file://{snapshot}/a"):
        with pytest.raises(BadRequestError, match=r"is in the snapshot .*, which never changes"):
            export_snapshot(snapshot, place)
    with pytest.raises(BadRequestError, match="an empty path names no directory"):
        export_snapshot(snapshot, "")
    assert sorted(snapshot.iterdir()) == before


def test_export_beside_a_manifest_of_another_program_is_no_export_into_a_snapshot(
    snapshot: Path, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "MANIFEST.json").write_text('{"name": "a site"}')
    export_snapshot(snapshot, tmp_path / "site" / "out")
    assert exported(tmp_path / "site" / "out")


def test_snapshot_without_entries_gives_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "000000001.log").write_bytes(bytes(SegmentBuilder()))
    for snapshot in (
        snapshot_of(tmp_path / "log", tmp_path / "old"),
        take_live_snapshot(tmp_path / "log", tmp_path / "snapshots"),
    ):
        assert export_snapshot(snapshot, tmp_path / "out").rows == 0
        assert exported(tmp_path / "out") == []


@pytest.mark.parametrize("processes", [1, 2])
def test_export_of_a_snapshot_without_a_live_index_replays_it(
    processes: int, tmp_path: Path
) -> None:
    write_random_log(tmp_path / "log", 12, segments=3, records=60)
    snapshot = snapshot_of(tmp_path / "log", tmp_path / "snapshots")
    export_snapshot(snapshot, tmp_path / "out", processes=processes)
    assert exported(tmp_path / "out") == replayed(snapshot)


@pytest.mark.parametrize("harm", ["missing", "torn", "other", "version"])
def test_export_of_a_snapshot_with_a_bad_live_index_leaves_nothing(
    harm: str, snapshot: Path, tmp_path: Path
) -> None:
    live = snapshot / "LIVE"
    data = live.read_bytes()
    live.unlink()
    if harm == "other":
        write_random_log(tmp_path / "log 2", 12, segments=2)
        shutil.copy(take_live_snapshot(tmp_path / "log 2", tmp_path / "others") / "LIVE", live)
    elif harm != "missing":
        live.write_bytes(data[:-1] if harm == "torn" else data[:7] + b"\2" + data[8:])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LogCorruptError, match=f"{live}: .*live index") as caught:
        export_snapshot(snapshot, tmp_path / "out")
    assert caught.value.hint == "export another snapshot, or restore the file"
    assert sorted(tmp_path.iterdir()) == before


def test_export_needs_neither_spark_nor_trio() -> None:
    code = (
        "import sys, fastjournal.spark.export.snapshot_export; "
        "sys.exit(any(name in sys.modules for name in ('pyspark', 'trio')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
