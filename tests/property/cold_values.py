"""Values on a simulated disk that left memory: read for a request, or looked at from outside."""

from __future__ import annotations

from fastjournal.cmdlog.format.layout import OFFSET_BITS
from fastjournal.cmdlog.read_value import Whereabouts, read_value
from fastjournal.disk import Disk
from fastjournal.errors import LogFailedError
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.engine.engine import Engine, Missing
from fastjournald.engine.value_memory import fill_value
from fastjournald.tables.entry import Cold, Entry
from fastjournald.tables.value_cache import Unreadable


def read(engine: Engine, disk: Disk, directory: str, entry: Entry) -> bytes:
    """Return the value in the record of an entry.

    Raises:
        LogFailedError: The disk failed.
    """
    place = Whereabouts(entry.position, entry.record_bytes, entry.job_id)
    replaced = engine.journal.usage.replaced.get(entry.position >> OFFSET_BITS)
    return read_value(disk, directory, place, replaced)


def fetch(engine: Engine, disk: Disk, directory: str, missing: Missing | None) -> Unreadable:
    """Read what a request needs, from a disk that may fail; return the reads that failed."""
    unreadable: dict[bytes, str] = {}
    for entry in missing.entries if missing else ():
        try:
            fill_value(engine.store, entry, entry.job_id, read(engine, disk, directory, entry))
        except LogFailedError as error:
            unreadable[entry.job_id] = str(error)
    return unreadable


def still(engine: Engine, disk: SimulatedDisk | None) -> SimulatedDisk | None:
    """Return a copy of the disk as it is, of which no call fails, where values are there only."""
    values = engine.store.values
    return disk.kill() if disk is not None and values is not None and values.cold else None


def value_of(engine: Engine, disk: SimulatedDisk | None, directory: str, entry: Entry) -> bytes:
    """Return the value of an entry, wherever it is, and let it stay there; see ``still``."""
    if not isinstance(entry.value, Cold):
        return entry.value
    assert disk is not None
    value = read(engine, disk, directory, entry)
    size = len(entry.value)
    value = value[: engine.journal.records.trimmed.get(entry.job_id, size)].ljust(size, b"\0")
    assert len(value) == size
    return value
