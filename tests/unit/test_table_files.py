"""Files of a table in an object store: an interrupted put shows all bytes of an object, or none."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from fastjournal.spark.storage.table_files import StoreFiles


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
