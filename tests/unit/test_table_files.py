"""Files of events and tables: an interrupted put shows all bytes of a file, or none."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fastjournal.disk import OsDisk
from fastjournal.spark.storage.table_files import DiskFiles, StoreFiles


class Upload:
    """Stream of an object store: closing it publishes the bytes that it has."""

    def __init__(self, objects: dict[str, bytes], path: str) -> None:
        self._objects = objects
        self._path = path
        self._data = b""

    def write(self, data: bytes) -> None:
        """Take bytes; Ctrl-C comes before these."""
        os.kill(os.getpid(), signal.SIGINT)
        self._data += data

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *error: object) -> None:
        self._objects[self._path] = self._data


class Store:
    """Object store, as far as a put needs one."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def open_output_stream(self, path: str) -> Upload:
        return Upload(self.objects, path)


def test_put_that_is_interrupted_leaves_no_part_of_an_object() -> None:
    store: Any = Store()
    with pytest.raises(KeyboardInterrupt):
        StoreFiles(store).put("bucket/days/2026-11-20.json", b"all of it")
    assert store.objects == {"bucket/days/2026-11-20.json": b"all of it"}


def test_remove_unfinished_takes_what_a_put_has_left_and_nothing_else(tmp_path: Path) -> None:
    beside = tmp_path / "events-new"
    (beside / "notes").mkdir(parents=True)
    (beside / "mine.parquet").write_bytes(b"of another program")
    (beside / "mine.new").write_bytes(b"of another program")
    (beside / f"segment-000000009-00000000.parquet.{'0' * 32}.new").write_bytes(b"PAR1")
    files = DiskFiles(OsDisk(), str(beside))
    files.remove_unfinished()
    assert sorted(path.name for path in beside.iterdir()) == ["mine.new", "mine.parquet", "notes"]
    for name in ("mine.new", "mine.parquet"):
        (beside / name).unlink()
    (beside / "notes").rmdir()
    files.remove_unfinished()
    assert not beside.exists()
