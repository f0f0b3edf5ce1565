"""Directory of the event table: commits in place, writers beside it, files that no commit names.

``history.event_table`` has the paths. Files count when a commit names them. All others
are of a run that works now, or were left by one that was killed; these are removed. Before files
are removed, the commits of another process are looked for: its files are no left ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from fastjournal.errors import LogCorruptError, LogLockedError
from fastjournal.spark.history.commits import Commit, files_of, read_commits
from fastjournal.spark.history.extraction_tasks import WORK
from fastjournal.spark.storage.table_files import TableFiles


class EventDirectory:
    """The files of a table of events.

    Args:
        files: File system.
        path: Path of the directory.
        guard: Raises ``LogLockedError`` where the lock of the caller was lost.

    Raises:
        LogCorruptError: A commit cannot be understood, or is missing.
        LogFailedError: Something cannot be read.
    """

    def __init__(self, files: TableFiles, path: str, guard: Callable[[], None]) -> None:
        self._files = files
        self._directory = path
        self._guard = guard
        self.commits = list(read_commits(files, f"{path}/_commits"))
        """All commits, in their order."""

    def path(self, name: str) -> str:
        """Return the path of a file of the table."""
        return f"{self._directory}/{name}"

    def put_commit(self, commit: Commit) -> None:
        """Put a commit into place."""
        self._check_writer()
        if not commit.gaps:
            # one that a crash has left without its commit
            self._files.delete(self.path(f"_gaps/{commit.number:09d}.parquet"))
        data = msgspec.json.format(msgspec.json.encode(commit)) + b"\n"
        self._files.put(self.path(f"_commits/{_commit_name(commit)}"), data)
        self.commits.append(commit)

    def _check_writer(self) -> None:
        """Check that no other process writes or has written the table."""
        self._guard()
        known = {_commit_name(commit) for commit in self.commits}
        for name in self._files.names(f"{self._directory}/_commits"):
            if name.endswith(".json") and name not in known:
                raise LogLockedError(
                    f"another process has written _commits/{name}",
                    path=self._directory,
                    hint="let one fj-nightly write a table, and run it again",
                )

    def remove_uncommitted(self) -> None:
        """Remove the files that a crash left without a commit."""
        committed = {file for _, file in files_of(self.commits)}
        found = self._files.walk(self._directory)
        # behind the listing: no file of a commit that this process does not know may go
        self._check_writer()
        self._check_commits(found)
        left = [file for file in found if _is_left(file, committed)]
        # a run is known until all of its files are gone for ever
        done = [file for file in left if not file.startswith(WORK)]
        self._remove(done)
        self._files.settle(self.path(file) for file in done)
        self._remove(file for file in left if file.startswith(WORK))
        days = {file.partition("/")[0] for file in committed}
        for name in self._files.names(self._directory):
            if name.startswith("day=") and name not in days:
                self._guard()
                self._files.remove_empty(self.path(name))

    def _check_commits(self, found: Collection[str]) -> None:
        """Check that a table without commits is one that runs have left before their first one.

        Raises:
            LogCorruptError: It has events of others: a copy without commits, which is no reason to
                remove all of them.
        """
        runs = {file.split("/")[1] for file in found if file.startswith(f"{WORK}/")}
        for file in () if self.commits else found:
            if file.startswith("day=") and not any(run in file for run in runs):
                raise LogCorruptError(
                    "there are events, and no commit that names them",
                    path=self.path(file),
                    hint="copy _commits too, from the place that the table came from; "
                    "or remove the directories day=* to begin anew",
                )

    def remove_work(self) -> None:
        """Remove the files between the tasks of a commit."""
        self._remove(f"{WORK}/{file}" for file in self._files.walk(self.path(WORK)))

    def _remove(self, files: Iterable[str]) -> None:
        """Remove files, and directories of runs that are empty then."""
        for file in files:
            self._guard()
            self._files.delete(self.path(file))
        for name in self._files.names(self.path(WORK)):
            if not self._files.walk(self.path(f"{WORK}/{name}")):
                self._files.remove_empty(self.path(f"{WORK}/{name}"))


def _commit_name(commit: Commit) -> str:
    return f"{commit.number:09d}.json"


def _is_left(file: str, committed: Collection[str]) -> bool:
    """Return whether no commit names a file that only a run writes."""
    head = file.partition("/")[0]
    return head == WORK or (head.startswith("day=") and file not in committed)
