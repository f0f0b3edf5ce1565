"""Types of the blocks of README.md and docs/, and of examples/tasks: mypy and pyright pass."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.staging import ROOT

NAMED = re.compile(r"# (\w+)\.py\n")
"""First line of a block that others import."""
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ONE_PROGRAM = {
    "docs/migrating.md": "",
    "docs/spark.md": 'SNAPSHOT = CHECKPOINT = OUTPUT = "/some/where"\n',
}
"""Pages whose blocks use names of earlier blocks, with what they leave to the reader."""

USERS_PROGRAM = """
import math
from datetime import UTC, datetime, timedelta

import anyio

from fastjournal import (
    Change, Client, Duration, Entry, FastjournalError, Instant, Job, JobLoop, JournalKey, Listener,
    Meta, Mirror, RefusedError, Spool, SyncClient, SyncJob, SyncJobLoop, SyncListener, Written,
    build_journal_key, domain_of,
)


def enqueue(client: SyncClient, uri: str, ttl: Duration, expires: Instant = math.inf) -> JournalKey:
    due = datetime.now(UTC) + timedelta(seconds=5)
    key = build_journal_key(domain_of(uri), uri, not_before=due)
    written: Written = client.set(key, b"value", uri=uri, ttl=ttl, expires=expires)
    stamp: datetime = written.timestamp
    print(stamp)
    parts = client.get(key).journal_key
    assert parts is not None
    return parts


def work(client: SyncClient) -> int:
    loop: SyncJobLoop = client.jobs("pages", lease=timedelta(minutes=1), retry_delay=retry)
    with loop as jobs:
        for job in jobs:
            text: str = job.decoded(str)
            meta: Meta = job.meta
            if meta.ttl is not None and meta.ttl > timedelta(1):
                job.fail(text, delay=3)
    return len(client.next("pages", count=3).pairs)


def retry(job: object) -> Duration | None:
    assert isinstance(job, Job | SyncJob)
    return timedelta(seconds=1) if job.attempts else None


def watch(listener: SyncListener) -> Change | None:
    return listener.wait(timeout=1)


async def serve(address: str) -> list[Entry]:
    async with Client(address) as client:
        listener: Listener
        async with client.listen("config") as listener:
            async for change in listener:
                print(change.decoded())
        copy: Mirror
        async with client.mirror("config:") as copy:
            print(copy[b"config:a"].expires)
        loop: JobLoop = client.jobs(b"pages", count=8)
        print(await loop.run(one_job))
        try:
            await client.touch("a", ttl=5)
        except RefusedError as error:
            print(error.key, error.code, error.address)
        return [entry async for entry in client.prefix("a")]


async def one_job(job: Job) -> None:
    await anyio.sleep(0.1)
    print(job.domain, await job.last_error())


def append(spool: Spool) -> bytes:
    try:
        return spool.append(uri="https://example.org/", value=3.5, not_before=datetime.now(UTC))
    except FastjournalError as error:
        print(error.hint)
        raise
"""


def programs() -> Iterator[tuple[str, str]]:
    """Yield a name, with page and line, and the text of each program of the pages."""
    yield "users_program", USERS_PROGRAM
    for example in sorted((ROOT / "examples" / "tasks").glob("*.py")):
        yield example.stem, example.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        path, text = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
        name = re.sub(r"\W", "_", path.removesuffix(".md"))
        found = list(BLOCK.finditer(text))
        if path in ONE_PROGRAM:
            yield name, ONE_PROGRAM[path] + "".join(block[1] for block in found)
            continue
        for block in found:
            if page.name == "tasks.md" and (named := NAMED.match(block[1])):
                yield named[1], block[1]
                continue
            yield f"{name}_line_{text.count(chr(10), 0, block.start()) + 1}", block[1]


CHECKERS = {
    "mypy": ["--strict", f"--cache-dir={ROOT / '.mypy_cache' / 'blocks'}"],
    "pyright": ["--pythonpath", sys.executable],
}

WRONG = 'from fastjournal import SyncClient\n\nSyncClient().set("a", lease_us=60)\n'
"""A program with an error that each checker finds."""


@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checker_finds_nothing_in_the_blocks_of_pages(checker: str, tmp_path: Path) -> None:
    for name, text in programs():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    assert len(list(tmp_path.iterdir())) > 15, "the blocks are found"
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    # as a user does it: with no settings of ours
    tool = [sys.executable, "-m", checker, *CHECKERS[checker], "."]
    run = subprocess.run(tool, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = re.findall(r"([\w.]+\.py):[\d:]+ -? ?error", run.stdout)
    assert (run.returncode, found) == (1, ["wrong.py"]), run.stdout + run.stderr
