"""Wake socket of a forwarder: it belongs to one forwarder alone."""

from __future__ import annotations

import select
from pathlib import Path

from fastjournal.spool.slots import WAKE_NAME
from fj_forwarder.forwarder import WakeSources


def test_closing_removes_the_wake_socket(tmp_path: Path) -> None:
    WakeSources(str(tmp_path)).close()
    assert not (tmp_path / WAKE_NAME).exists()


def test_closing_leaves_the_wake_socket_of_the_forwarder_of_a_directory_made_anew(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "spool"
    directory.mkdir()
    of_old = WakeSources(str(directory))
    directory.rename(tmp_path / "moved")
    directory.mkdir()
    of_new = WakeSources(str(directory))
    of_old.close()
    assert (directory / WAKE_NAME).is_socket()
    of_new.close()
    assert not (directory / WAKE_NAME).exists()


def test_inotify_of_the_own_status_file_wakes_nothing(tmp_path: Path) -> None:
    with WakeSources(str(tmp_path)) as watch:
        _, inotify = watch.sources
        for name, wakes in (("status.json", False), ("20261120T080000Z-a.fjs", True)):
            temporary = tmp_path / ".status.json.tmp"
            temporary.touch()
            temporary.rename(tmp_path / name)
            assert select.select([inotify.descriptor], [], [], 60)[0]
            assert inotify.drain() is wakes
