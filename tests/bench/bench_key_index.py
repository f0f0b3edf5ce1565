"""Processor time of the key index: a bulk load, its pages, the merge, keys that come and go.

    python -m tests.bench.bench_key_index [JOBS]

The index alone, with two keys of each job, in one process. Processor time of the thread, so that
other work on the machine counts only by the caches that it takes.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from time import thread_time

from fastjournald.tables.key_index import KeyIndex

LOADED_KEYS = 2048
"""Keys that a part of a bulk load has."""
RUN_KEYS = 65_536
STEP_KEYS = 200
FRESH_KEYS_MAX = 8192
SORTED_KEYS = 2048
GONE_KEYS_MAX = 4096
RELIEVED_KEYS = 600
PAGE_KEYS = 256


class Keys:
    """Keys in 256 shards, like those of the key table, and their index."""

    def __init__(self) -> None:
        self.shards: list[dict[bytes, None]] = [{} for _ in range(256)]
        self.index = KeyIndex(self.standing)

    def standing(self, keys: list[bytes]) -> list[bytes]:
        return [key for key in keys if key in self.shards[hash(key) & 255]]

    def add(self, key: bytes) -> None:
        self.shards[hash(key) & 255][key] = None

    def come(self, key: bytes) -> None:
        self.add(key)
        self.index.fresh[key] = True

    def go(self, key: bytes) -> None:
        del self.shards[hash(key) & 255][key]
        if key in self.index.fresh:
            self.index.fresh[key] = False
        else:
            self.index.gone.append(key)


def keys_of(number: int) -> tuple[bytes, bytes]:
    return (
        b"example.org:128:%016d:%d" % (1_000_000_000_000_000 + number, number),
        b"https://example.org/some/page/%d.html" % number,
    )


def show(what: str, seconds: float, keys: int, worst: float) -> None:
    print(f"{what:28} {seconds / keys * 1e6:6.2f} us a key, longest call {worst * 1e3:5.2f} ms")


def load(what: str, keys: Keys, jobs: Sequence[int]) -> None:
    """Load keys in parts, as at a start; the time is that of sorting them."""
    total = worst = 0.0
    pending = keys.index.pending
    for at in range(0, len(jobs), LOADED_KEYS // 2):
        pairs = [keys_of(job) for job in jobs[at : at + LOADED_KEYS // 2]]
        part = [key for pair in zip(*pairs, strict=True) for key in pair]
        for key in part:
            keys.add(key)
        started = thread_time()
        pending += part
        if len(pending) >= RUN_KEYS:
            keys.index.sort_pending(len(pending))
        seconds = thread_time() - started
        total += seconds
        worst = max(worst, seconds)
    keys.index.sort_pending(len(pending))
    show(what, total, 2 * len(jobs), worst)


def read_pages(what: str, keys: Keys, jobs: Sequence[int]) -> None:
    """Read pages from some places, one after the other."""
    total = worst = 0.0
    starts = [key for job in jobs[:: len(jobs) // 100] for key in keys_of(job)]
    for start in starts:
        started = thread_time()
        for _ in islice(keys.index.between(start, None), PAGE_KEYS):
            pass
        seconds = thread_time() - started
        total += seconds
        worst = max(worst, seconds)
    show(what, total, PAGE_KEYS * len(starts), worst)


def merge(keys: Keys, number: int) -> None:
    worst = 0.0
    started = before = thread_time()
    while keys.index.merge(STEP_KEYS):
        worst = max(worst, (after := thread_time()) - before)
        before = after
    show("merge", thread_time() - started, number, worst)


def change(what: str, keys: Keys, jobs: Iterable[int], note: Callable[[bytes], None]) -> None:
    """Let keys come or go, by one of the methods; the time is that of sorting and merging them."""
    index, total, worst, count = keys.index, 0.0, 0.0, 0
    for job in jobs:
        for key in keys_of(job):
            note(key)
            count += 1
        if len(index.fresh) > FRESH_KEYS_MAX or len(index.gone) > GONE_KEYS_MAX:
            started = thread_time()
            if len(index.fresh) > FRESH_KEYS_MAX:
                index.sort_pending(SORTED_KEYS)
            else:
                index.merge_gone(RELIEVED_KEYS)
            seconds = thread_time() - started
            total += seconds
            worst = max(worst, seconds)
    show(what, total, count, worst)


def main() -> None:
    """Load many keys, read pages, merge them, then let keys come and go."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    gc.disable()
    for order in ("in order", "in no order"):
        keys = Keys()
        loaded = list(range(jobs))
        if order == "in no order":
            random.shuffle(loaded)
        load(f"load, {order}", keys, loaded)
        read_pages("pages of sorted runs", keys, loaded)
        merge(keys, 2 * jobs)
        read_pages("pages of the merged index", keys, loaded)
    some = jobs // 10
    change("come, in order", keys, range(jobs, jobs + some), keys.come)
    change("go, while in runs", keys, range(jobs, jobs + some), keys.go)
    merge(keys, 2 * some)
    change("go, in order", keys, range(some), keys.go)
    change("go, at random", keys, random.sample(range(some, jobs), some), keys.go)
    while keys.index.merge(STEP_KEYS):
        pass
    assert list(keys.index) == sorted(key for shard in keys.shards for key in shard)


if __name__ == "__main__":
    main()
