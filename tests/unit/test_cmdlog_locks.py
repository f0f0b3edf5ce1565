from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.cmdlog.locks import lock_append, lock_read
from fastjournal.disk import OsDisk
from fastjournal.errors import LogLockedError

HOLDER = """
import sys
from fastjournal.cmdlog.locks import lock_append
from fastjournal.disk import OsDisk
lock = lock_append(OsDisk(), sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_only_one_process_appends_and_its_death_frees_the_log(tmp_path: Path) -> None:
    directory = str(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LogLockedError, match="another daemon") as caught:
            lock_append(OsDisk(), directory)
        assert caught.value.path == f"{directory}/append.lock"
        assert "fuser" in str(caught.value)
        holder.kill()
        holder.wait()
    lock_append(OsDisk(), directory).close()


def test_readers_share_and_a_rewrite_excludes_them(tmp_path: Path) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    first, second = lock_read(disk, directory), lock_read(disk, directory)
    with pytest.raises(LogLockedError, match="reads this log"):
        lock_read(disk, directory, exclusive=True)
    first.close()
    second.close()
    rewrite = lock_read(disk, directory, exclusive=True)
    with pytest.raises(LogLockedError, match="rewrites a segment"):
        lock_read(disk, directory)
    rewrite.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["read.lock"]
