"""Snapshot of a nightly run: taken once behind a day, also where runs of that day fail.

    OUTPUT/_snapshot.json     the last one that a run took: {"server": ADDRESS, "snapshot": PATH}

A snapshot removes the oldest ones (``--keep-snapshots``), so a run that repeats a failed one takes
none: it reads that of the failed run, which is the first one behind the day. Where the daemon takes
none, a run still takes the archive: on a nearly full disk the archive holds the space.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import msgspec

from fastjournal.errors import BadRequestError, FastjournalError, LogError
from fastjournal.spark.history.days import begin_us
from fastjournal.spark.nightly.inputs import Night, check_archived, snapshot_manifest
from fastjournal.spark.storage.table_files import open_files

_RECORD = "_snapshot.json"


class _Taken(msgspec.Struct):
    """A snapshot that a run took."""

    server: str
    snapshot: str


def ensure_snapshot(night: Night, server: str, take: Callable[[], str]) -> FastjournalError | None:
    """Give a run a snapshot behind its day; return why there is none.

    Args:
        night: Inputs; they get the snapshot.
        server: Address of the daemon.
        take: Takes a snapshot, and returns its path.

    Raises:
        BadRequestError: The address is none, or the archive is that of another daemon.
        FastjournalError: The daemon takes no snapshot, and there is no archive to take.
    """
    night.snapshot = _taken_before(night, server)
    if night.snapshot is None:
        try:
            night.snapshot = take()
        except BadRequestError:
            raise
        except FastjournalError as error:
            if night.archive is None:
                raise
            error.add_note("the archive was taken, and the report has no state of the entries")
            return error
        _record(night, _Taken(server, night.snapshot))
    if night.archive is not None:
        check_archived(night.archive, night.snapshot)
    return None


def _taken_before(night: Night, server: str) -> str | None:
    """Return the snapshot that a failed run took behind the day, if it is still there."""
    files, path = open_files(night.store.uri)
    if _RECORD not in files.names(path):
        return None
    # one that cannot be read is replaced, and a snapshot may have been removed since
    with suppress(msgspec.MsgspecError, LogError):
        taken = msgspec.json.decode(files.read(f"{path}/{_RECORD}"), type=_Taken)
        manifest = snapshot_manifest(taken.snapshot)
        if taken.server == server and manifest.taken_us >= begin_us(night.day + timedelta(days=1)):
            return taken.snapshot
    return None


def _record(night: Night, taken: _Taken) -> None:
    night.store.guard()
    files, path = open_files(night.store.uri)
    files.put(f"{path}/{_RECORD}", msgspec.json.encode(taken))
