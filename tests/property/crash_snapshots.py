"""The snapshots of a daemon that crashes: whole, for ever the same, and a daemon starts on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple

from fastjournal.cmdlog.live_index import LiveIndexWriter
from fastjournal.cmdlog.snapshot import (
    PartialSnapshot,
    begin_snapshot,
    list_snapshots,
    prune_snapshots,
    remove_partial_snapshots,
    verify_snapshot,
)
from fastjournal.cmdlog.writer import LogWriter
from fastjournal.errors import LogFailedError
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.engine.store import Store
from tests.property.live_indexes import assert_live_index

SNAPSHOTS = "/snapshots"


class Taken(NamedTuple):
    """A snapshot whose client got OK."""

    at: int
    state: object
    """State of the daemon at the instant of the snapshot."""
    contents: dict[str, bytes]


class Asked(NamedTuple):
    """State of the daemon at the instant of a snapshot."""

    at: int
    state: object


class _Taking:
    """A snapshot that is being taken."""

    def __init__(self, partial: PartialSnapshot, store: Store, asked: Asked) -> None:
        self.partial = partial
        self.store = store
        self.asked = asked
        self.index: LiveIndexWriter | None = None


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
        self._taking: _Taking | None = None
        self.verified = 0
        """Snapshots that were found whole after a crash."""
        self.indexed = 0
        """Entries in the live indexes of these."""
        self.restored = 0
        """Those of which a daemon was started on a copy."""

    def begin(
        self, disk: SimulatedDisk, store: Store, writer: LogWriter, now: int, asked: Asked
    ) -> None:
        """Link the segments, and begin to take the live index, where no snapshot is being taken.

        Args:
            disk: Where log and snapshots are.
            store: Entries, as the log has them.
            writer: The log, whose active segment was sealed just now.
            now: The present.
            asked: State that the snapshot has.
        """
        if self._taking is not None or store.journal.usage.replaced:
            return
        sealed = list(writer.sealed)
        with suppress(LogFailedError):
            partial = begin_snapshot(disk, self._log, SNAPSHOTS, sealed, now)
            self._taking = _Taking(partial, store, asked)
            try:
                file = partial.create_live_index()
                self._taking.index = LiveIndexWriter(file.write, now, sealed)
            except LogFailedError:
                self._give_up(self._taking)
                return
            store.begin_capture(writer.next_number)

    def go_on(self, disk: SimulatedDisk) -> None:
        """Go on with the snapshot that is being taken, which may fail; that ends nothing."""
        taking = self._taking
        if taking is None or taking.index is None:
            return
        capture = taking.store.capture
        assert capture is not None
        try:
            for _ in range(self._draw.choice((1, 20, 100))):
                if not capture.walked:
                    capture.step(1)
            for run in capture.take_runs():
                taking.index.add_run(*run)
            if not capture.walked:
                return
            path = taking.partial.finish(taking.index.finish())
        except LogFailedError:
            self._give_up(taking)
            return
        self._end()
        self._taken[path] = Taken(*taking.asked, contents(disk.kill(), path))
        self._remove_old(disk)

    def _give_up(self, taking: _Taking) -> None:
        taking.partial.remove()
        self._end()

    def _end(self) -> None:
        if self._taking is not None:
            self._taking.store.end_capture()
        self._taking = None

    def _remove_old(self, disk: SimulatedDisk) -> None:
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
        self._end()
        found = list_snapshots(disk, SNAPSHOTS)
        for path in found:
            manifest = verify_snapshot(disk, path)
            self.verified += 1
            if manifest.live is not None:
                self.indexed += assert_live_index(disk, path)
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
        self._end()
        remove_partial_snapshots(disk, SNAPSHOTS)
        assert [f"{SNAPSHOTS}/{name}" for name in names(disk)] == list_snapshots(disk, SNAPSHOTS)


def names(disk: SimulatedDisk) -> list[str]:
    """Return all names where snapshots are kept."""
    return disk.listdir(SNAPSHOTS) if disk.exists(SNAPSHOTS) else []


def contents(disk: SimulatedDisk, path: str) -> dict[str, bytes]:
    """Return the files of a snapshot."""
    return {name: disk.read(f"{path}/{name}") for name in disk.listdir(path)}
