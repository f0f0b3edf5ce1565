"""Files of tests in memory: where they are, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import memory_files
from tests.memory_files import copy_directory, memory_directory

HOLDER = """
import sys
from pathlib import Path
from tests import memory_files

memory_files.BYTES_MIN = memory_files.FILES_MIN = 0
memory_files.SHARED_MEMORY = Path(sys.argv[1])
with memory_files.memory_directory() as directory:
    (directory / "file").touch()
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory in the place of /dev/shm, with room for files of tests."""
    monkeypatch.setattr(memory_files, "BYTES_MIN", 0)
    monkeypatch.setattr(memory_files, "FILES_MIN", 0)
    monkeypatch.setattr(memory_files, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_memory_directory_is_deleted_behind_the_block(shared: Path) -> None:
    with memory_directory() as directory:
        assert directory is not None
        assert directory.parent == shared
        (directory / "sub").mkdir()
        (directory / "sub" / "file").touch()
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("bound", ["BYTES_MIN", "FILES_MIN", "SHARED_MEMORY"])
def test_memory_directory_is_none_where_there_is_no_room(
    bound: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = shared / "missing" if bound == "SHARED_MEMORY" else 1 << 62
    monkeypatch.setattr(memory_files, bound, value)
    with memory_directory() as directory:
        assert directory is None
    assert list(shared.iterdir()) == []


def test_memory_directory_of_a_killed_process_is_deleted_by_the_next_one(shared: Path) -> None:
    (shared / "other").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(shared)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        with memory_directory():
            assert (held / "file").exists()
        process.kill()
    assert (held / "file").exists()
    with memory_directory():
        assert not held.exists()
    assert [path.name for path in shared.iterdir()] == ["other"]


def test_memory_directory_is_copied_without_the_holes_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    sparse = tmp_path / "from" / "file"
    with sparse.open("wb") as file:
        for offset in (0, 1 << 30, 1 << 36):
            file.seek(offset)
            file.write(b"data %d" % offset)
        os.truncate(file.fileno(), 1 << 37)
    (tmp_path / "from" / "empty").touch()
    (tmp_path / "from" / "hole").touch()
    os.truncate(tmp_path / "from" / "hole", 1 << 37)
    copy_directory(tmp_path / "from", tmp_path / "to")
    for path in (tmp_path / "from").iterdir():
        copy = (tmp_path / "to" / path.name).stat()
        assert copy.st_size == path.stat().st_size
        assert copy.st_blocks <= path.stat().st_blocks
    with (tmp_path / "to" / "file").open("rb") as file:
        for offset in (0, 1 << 30, 1 << 36):
            file.seek(offset)
            assert file.read(20) == (b"data %d" % offset).ljust(20, b"\0")


def test_memory_directory_is_copied_without_its_pipes(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "file").write_bytes(b"x")
    (tmp_path / "from" / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "from" / "pipe")
    copy_directory(tmp_path / "from", tmp_path / "to")
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["dangling", "file"]
