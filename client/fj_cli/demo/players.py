"""Players of the demo: producers that spool changes, workers that lease and complete them.

Change events of web pages, and the number of executions that they ask for.

A file of events (gzip) has one event a line, oldest first, its fields separated by tabs: seconds
since the Unix epoch, domain, kind of change, path of the page's source. The package has the newest
10,000 events of two sites, a checkout all 122,237 (``examples/demo/page-changes.tsv.gz``). A page
whose change is reported waits for a delay D; a further change within D puts it off to D after that.
So a page is worked on once for its first change, and once more for each change that comes D or more
after the one before it.
"""

from __future__ import annotations

import gzip
import multiprocessing
import time
from collections.abc import Callable, Iterator
from importlib import resources
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fastjournal.client import SyncClient, calls
from fastjournal.client.core.calls import Call
from fastjournal.errors import CannotConnectError, RefusedError
from fastjournal.spool import Spool
from fj_cli.demo.services import DemoError

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


BATCH_MAX = 64
"""Most entries of one NEXT; it begins with a few, so that few have to be released."""
BATCH_FIRST = 4

LEASE_S = 5.0
"""Long enough for work that is done at once; leases lost with a killed daemon end after it."""

RECONNECT_SECONDS = 30.0
RETRY_SECONDS = 0.02


class Terms(msgspec.Struct, frozen=True):
    """Context that all players share."""

    spool: str
    address: str
    delay_s: int
    shift_s: int
    """Added to the time of each event, so that the last work is due now."""
    producers: int
    events: Path | None
    """File of the events; None: those of the package."""


class Spooled(msgspec.Struct):
    """Report of a producer for one slice."""

    events: int = 0


class Worked(msgspec.Struct):
    """Report of a worker for one slice."""

    completed: list[tuple[bytes, int]] = []
    """Page and due second of each execution."""
    requests: int = 0
    lost_leases: int = 0


Answer: TypeAlias = Spooled | Worked


class Player:
    """A process that gets commands over a pipe, and answers when one is done.

    Args:
        role: ``produce`` or ``work``.
        terms: For it.
        number: Number of this producer or worker, from 0.
    """

    def __init__(self, role: Callable[[Connection, Terms, int], None], terms: Terms, number: int):
        # a fresh interpreter: nothing is shared with this process but the pipe
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=role, args=(theirs, terms, number), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, *what: int | None) -> None:
        """Give it something to do."""
        self._pipe.send(what)

    def answer(self) -> Any:
        """Return what it did.

        Raises:
            DemoError: It died.
        """
        try:
            return self._pipe.recv()
        except EOFError:
            raise DemoError("a producer or worker died; what it said is above") from None

    def close(self) -> None:
        """End the program."""
        self._pipe.close()
        self._process.join()

    def end(self) -> None:
        """End it, where it was not closed."""
        self._process.terminate()
        self._process.join()


def produce(pipe: Connection, terms: Terms, number: int) -> None:
    """Spool every n-th event of the slices that are asked for; never wait for a network."""
    changes = load_changes(terms.events)
    with Spool(terms.spool) as spool:
        while True:
            try:
                first, end = pipe.recv()
            except EOFError:
                return
            done = Spooled()
            for at in range(first + number, end, terms.producers):
                change = changes[at]
                at_us = (change.at_s + terms.shift_s) * SECOND_US
                spool.append(
                    domain=change.domain,
                    uri=change.uri,
                    not_before=at_us // SECOND_US + terms.delay_s,
                    value=change.kind,
                    # several events of one second: the later line is the later change
                    timestamp_us=at_us + at % SECOND_US,
                )
                done.events += 1
            pipe.send(done)


def work(pipe: Connection, terms: Terms, number: int) -> None:
    """Lease and complete what is due by the file's clock, domain after domain."""
    domains = sorted({change.domain for change in load_changes(terms.events)})
    domains = domains[number % len(domains) :] + domains[: number % len(domains)]
    client = SyncClient(terms.address, reconnect=None)
    while True:
        try:
            (due_s,) = pipe.recv()
        except EOFError:
            client.close()
            return
        worked = Worked(completed=[])
        for domain in domains:
            count = BATCH_FIRST
            while _work_batch(client, terms, domain, count, due_s, worked):
                count = min(2 * count, BATCH_MAX)
        pipe.send(worked)


def _work_batch(
    client: SyncClient, terms: Terms, domain: bytes, count: int, due_s: int | None, worked: Worked
) -> bool:
    """Work on what one NEXT gives; whether there may be more."""
    due_us = None if due_s is None else (due_s + terms.shift_s) * SECOND_US
    (jobs,) = _send(client, [calls.next_(domain, count=count, lease=LEASE_S)], worked)
    if isinstance(jobs, RefusedError):
        raise jobs
    if jobs.token is None:
        return False
    due: list[tuple[bytes, int]] = []
    completions: list[Call[Any]] = []
    releases: list[Call[Any]] = []
    for entry in jobs:
        key = entry.journal_key
        assert key is not None
        if due_us is None or key.not_before_us <= due_us:
            due.append((entry.uri, key.not_before_us // SECOND_US - terms.shift_s))
            completions.append(calls.delete(entry.key, token=jobs.token))
        else:
            # the clock of the file is before it: it is not due yet
            releases.append(calls.release(entry.key, jobs.token))
    outcomes = _send(client, completions + releases, worked)
    for page, outcome in zip(due, outcomes, strict=False):
        if not isinstance(outcome, RefusedError):
            worked.completed.append(page)
        elif outcome.code == "lease-lost":
            worked.lost_leases += 1
        elif outcome.code != "not-found":
            raise outcome
    return not releases


def _send(client: SyncClient, many: list[Call[Any]], worked: Worked) -> list[Any]:
    """Send requests; where the daemon dies under them, send them again when it is back.

    A completion that had reached the disk is ``not-found`` then: only the holder of the token can
    have completed the job, so it counts as done.
    """
    deadline = time.monotonic() + RECONNECT_SECONDS
    lost = False
    while True:
        worked.requests += len(many)
        try:
            client.connect()
            outcomes: list[Any] = client.call_many(many)
        except CannotConnectError:
            if time.monotonic() > deadline:
                raise
            lost = True
            time.sleep(RETRY_SECONDS)
            continue
        if lost:
            return [_settle(outcome) for outcome in outcomes]
        return outcomes


def _settle(outcome: Any) -> Any:
    if isinstance(outcome, RefusedError) and outcome.code == "not-found":
        return None
    return outcome
