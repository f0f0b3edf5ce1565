"""Promise 10: the same seed gives the same run, in another process too.

Each process of Python hashes bytes in a way of its own, unless PYTHONHASHSEED says which. So a loop
over a set of keys is the same twice in one process and differs in the next: a seed that failed
would pass when it is tried again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.property.crashing_daemon import LOG, CrashingDaemon
from tests.property.model_parts import Rules
from tests.property.random_sessions import Choices, draw_session
from tests.property.subject import SECOND, START, EngineSubject
from tests.property.test_crash_simulation import LIVES, live_and_crash, options

SEEDS = 8
HASH_SEEDS = ("1", "2", "3")
PROGRAM = f"from {__name__} import tell_runs; tell_runs()"
ROOT = Path(__file__).parents[2]


def crashing_run(seed: int) -> str:
    """Return a digest of all that is on the disk after several lives of a daemon."""
    daemon = CrashingDaemon(seed, options(seed), exact=seed % 3 != 0)
    for _ in range(LIVES):
        live_and_crash(daemon)
    disk = daemon.disk.kill()
    digest = hashlib.sha256()
    for name in disk.listdir(LOG):
        digest.update(name.encode() + b"\0" + disk.read(f"{LOG}/{name}"))
    return digest.hexdigest()


def session_run(seed: int) -> str:
    """Return a digest of all that clients get in a random session."""
    rules = Rules(lease_us_default=5 * SECOND, attempts_max=seed % 3, postpone_us_max=SECOND)
    engine, now, leases = EngineSubject(rules, checks=False), START, []
    digest = hashlib.sha256()
    for step in draw_session(seed, 200, Choices(START)):
        now += step.wait
        engine.advance(now)
        reply = engine.handle(step.session, step.request(now, leases), now)
        if reply is not None and reply.timeout is not None and reply.pairs:
            leases.append((reply.timeout, reply.pairs[0].key))
        digest.update(repr((reply, engine.serve_waiters(now), engine.tell(now))).encode())
    return digest.hexdigest()


def tell_runs() -> None:
    """Print the digests of runs of this process."""
    for seed in range(SEEDS):
        print(seed, crashing_run(seed), session_run(seed))


def test_engine_gives_the_same_run_for_the_same_seed_in_any_process() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
        )
        for hash_seed in HASH_SEEDS
    ]
    said = [process.communicate()[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(HASH_SEEDS)
    assert len(set(said[0].splitlines())) == SEEDS
    assert said[0] == said[1] == said[2]
