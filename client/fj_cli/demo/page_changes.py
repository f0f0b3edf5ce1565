"""Change events of web pages, and the number of executions that they ask for.

A file of events (gzip) has one event a line, oldest first, its fields separated by tabs: seconds
since the Unix epoch, domain, kind of change, path of the page's source. The package has the newest
10,000 events of two sites, a checkout all 122,237 (``examples/demo/page-changes.tsv.gz``). A page
whose change is reported waits for a delay D; a further change within D puts it off to D after that.
So a page is worked on once for its first change, and once more for each change that comes D or more
after the one before it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import NamedTuple

SECOND_US = 1_000_000


class PageChange(NamedTuple):
    """One event."""

    at_s: int
    domain: bytes
    kind: bytes
    path: bytes

    @property
    def uri(self) -> bytes:
        """The page: what is worked on."""
        return b"https://%b/%b" % (self.domain, self.path)


class ChangeSlice(NamedTuple):
    """Events ``first`` to ``end - 1``, between which no page that changes has to be worked on."""

    first: int
    end: int
    due_s: int | None
    """After them all is worked off that is due at this second; None: everything is."""


def load_changes(file: Path | None = None) -> list[PageChange]:
    """Return the events of a file, oldest first; None: those of the package."""
    source = file or resources.files("fj_cli").joinpath("data", "page-changes.tsv.gz")
    data = source.read_bytes()
    changes = []
    for line in gzip.decompress(data).splitlines():
        at_s, domain, kind, path = line.split(b"\t")
        changes.append(PageChange(int(at_s), domain, kind, path))
    return changes


def expected_executions(changes: list[PageChange], delay_s: int) -> set[tuple[bytes, int]]:
    """Return which pages must be worked on and when, straight from the events: URI and second."""
    executions = set()
    due: dict[bytes, int] = {}
    for change in changes:
        uri = change.uri
        if uri in due and change.at_s >= due[uri]:
            executions.add((uri, due[uri]))
        due[uri] = change.at_s + delay_s
    executions.update(due.items())
    return executions


def slices(changes: list[PageChange], delay_s: int) -> Iterator[ChangeSlice]:
    """Cut the events wherever a page changes again whose work is due by then.

    The play keeps the file's own time, in which years go by in seconds: work that is due before an
    event is done before that event is played.
    """
    due: dict[bytes, int] = {}
    first = 0
    for at, change in enumerate(changes):
        if change.at_s >= due.get(change.uri, change.at_s + 1):
            yield ChangeSlice(first, at, change.at_s)
            first = at
            due = {uri: instant for uri, instant in due.items() if instant > change.at_s}
        due[change.uri] = change.at_s + delay_s
    yield ChangeSlice(first, len(changes), None)
