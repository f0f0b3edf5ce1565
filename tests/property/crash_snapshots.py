"""The snapshots of a daemon that crashes: whole, for ever the same, and a daemon starts on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple

from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournal.cmdlog.snapshot import (
    list_snapshots,
    prune_snapshots,
    remove_partial_snapshots,
    take_snapshot,
    verify_snapshot,
)
from fastjournal.errors import LogFailedError
from fastjournal.testing.disk import SimulatedDisk

SNAPSHOTS = "/snapshots"


class Taken(NamedTuple):
    """A snapshot whose client got OK."""

    at: int
    state: object
    """State of the daemon at the instant of the snapshot."""
    contents: dict[str, bytes]


class Snapshots:
    """Takes and removes snapshots, and keeps what must be found of them.

    Args:
        log: Directory of the log.
        draw: Chance.
    """

    def __init__(self, log: str, draw: Random) -> None:
        self._log = log
        self._draw = draw
        self._taken: dict[str, Taken] = {}
        self._may_be_gone: set[str] = set()
        self.verified = 0
        """Snapshots that were found whole after a crash."""
        self.restored = 0
        """Those of which a daemon was started on a copy."""

    def take(
        self, disk: SimulatedDisk, sealed: list[SegmentInfo], now: int, at: int, state: object
    ) -> None:
        """Take one, and perhaps remove old ones; that may fail, which ends nothing.

        Args:
            disk: Where log and snapshots are.
            sealed: All segments of the log.
            now: The present.
            at: An instant.
            state: State of the daemon, at that instant.
        """
        with suppress(LogFailedError):
            path = take_snapshot(disk, self._log, SNAPSHOTS, sealed, now)
            self._taken[path] = Taken(at, state, contents(disk.kill(), path))
        if self._draw.random() < 0.3:
            keep = self._draw.randint(1, 3)
            with suppress(LogFailedError):
                self._may_be_gone |= set(list_snapshots(disk, SNAPSHOTS)[:-keep])
                for path in prune_snapshots(disk, SNAPSHOTS, keep):
                    self._taken.pop(path, None)

    def check(
        self, disk: SimulatedDisk, restore: Callable[[SimulatedDisk, int], object] | None
    ) -> None:
        """After a crash: what has the name of a snapshot is whole; those that got OK are there.

        Args:
            disk: The disk as the crash left it; it does not fail.
            restore: Starts a daemon on the log of a disk, and returns its state at an instant.
        """
        found = list_snapshots(disk, SNAPSHOTS)
        for path in found:
            verify_snapshot(disk, path)
            self.verified += 1
            taken = self._taken.get(path)
            if taken is None:
                continue
            assert contents(disk, path) == taken.contents, f"{path} has changed"
            if restore is not None and self._draw.random() < 0.2:
                self.restored += 1
                copy = SimulatedDisk()
                copy.mkdir(self._log)
                for name, data in taken.contents.items():
                    copy.create(f"{self._log}/{name}").write(data)
                assert restore(copy, taken.at) == taken.state
        for path in self._taken.keys() - set(found):
            assert path in self._may_be_gone, f"{path} is gone"
            del self._taken[path]

    def tidy(self, disk: SimulatedDisk) -> None:
        """Do what a start does with half of a snapshot.

        Raises:
            LogFailedError: The disk failed.
        """
        remove_partial_snapshots(disk, SNAPSHOTS)
        assert [f"{SNAPSHOTS}/{name}" for name in names(disk)] == list_snapshots(disk, SNAPSHOTS)


def names(disk: SimulatedDisk) -> list[str]:
    """Return all names where snapshots are kept."""
    return disk.listdir(SNAPSHOTS) if disk.exists(SNAPSHOTS) else []


def contents(disk: SimulatedDisk, path: str) -> dict[str, bytes]:
    """Return the files of a snapshot."""
    return {name: disk.read(f"{path}/{name}") for name in disk.listdir(path)}
