"""Golden log: a log of the present format, as a daemon writes it.

``python -m tests.format.golden_log`` renews the directory ``data/fastjournald`` with it, the only
one until 0.1.0; see docs/cmdlog.md, "Format version".
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.subject import SECOND

GOLDEN = Path(__file__).parent / "data/fastjournald"
LIVE = "live.json"


def key(number: int) -> bytes:
    return b"jobs:%d:0:%d" % (number % 3, number)


def build() -> CompactedLog:
    """Return a log in which most kinds of records stand, in some segments."""
    log = CompactedLog(cmdlog_seg_size=4096, tombstone_ttl=600)
    for number in range(60):
        log.done(Function.SET, key(number), b"job", uri=b"u%d" % (number % 40))
        log.pass_time(1)
        if number % 4 == 0:
            reply = log.ask(Function.NEXT, b"jobs", timeout=10 * SECOND, count=2)
            for pair in reply.pairs or ():
                how = {"flags": Flag.WORKED_ON, "timeout": reply.timeout}
                if number % 16 == 4:
                    log.done(Function.RELEASE, pair.key, **how)
                elif number % 16 == 8:
                    log.done(Function.RELEASE, pair.key, b"boom", kind=ValueType.STRING, **how)
                elif number % 16 == 12:
                    log.done(Function.DELETE, pair.key, **how)
        if number % 10 == 5:
            log.ask(Function.BURY, key(number), b"bad", kind=ValueType.STRING)
            log.ask(Function.KICK, key(number - 10))
        if number % 10 == 7:
            log.done(Function.SET, b"plain", b"value", flags=Flag.OVERWRITE | Flag.PERSIST)
            log.ask(Function.RENAME, key(number), uri=b"jobs:9:0:r%d" % number)
            log.ask(Function.DELETE, key(number - 1), flags=Flag.OVERWRITE)
    log.done(Function.PAUSE, b"jobs", ttl=1000 * SECOND)
    log.pass_time(1)
    log.ask(Function.PURGE, b"jobs", count=3)
    log.clean_all()
    log.flush()
    return log


def live_of(log: CompactedLog) -> dict[str, list[object]]:
    """Return timestamp, token and value of each entry by its key."""
    return {
        entry.key.decode(): [entry.timestamp, entry.token, entry.value.decode()]
        for entry in log.engine.store
        if isinstance(entry.value, bytes)
    }


def main() -> None:
    log = build()
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir()
    for name in log.segments():
        (GOLDEN / name).write_bytes(log.disk.read(f"{LOG}/{name}"))
    live = json.dumps(live_of(log), indent=1, sort_keys=True)
    (GOLDEN / LIVE).write_text(f"{live}\n")


if __name__ == "__main__":
    main()
