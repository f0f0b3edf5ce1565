"""Replay of blocks: entries side by side in the log are made live together. Pure.

The result is that of replaying their records one by one. Nearly always nothing in a block meets
anything that is live: then it is placed by a few calls that leave the interpreter's loop. Else each
entry is placed by itself, by the rules of ``ReplayState.place``.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_

from fastjournal.cmdlog.format.layout import RUN_BYTES
from fastjournal.cmdlog.format.records import instant_at
from fastjournal.cmdlog.recovery.entry_blocks import EntryBlock
from fastjournal.cmdlog.recovery.replay import Replay
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import RecordRun


class BlockReplay:
    """Replays a run of records, those that are in blocks together.

    Args:
        replay: Stands at the segment of the run.
        run: From ``scan_segment``.
        blocks: Blocks of the run, in ascending order.
    """

    def __init__(self, replay: Replay, run: RecordRun, blocks: Iterator[EntryBlock]) -> None:
        self._replay = replay
        self._run = run
        self._blocks = blocks
        self._block = next(blocks, None)

    def replay(self, first: int, stop: int, *, last: bool) -> int:
        """Replay records ``first`` to about ``stop``; see ``Replay.replay``."""
        replay = self._replay
        run = self._run
        stop = min(stop, len(run))
        index = first
        while index < stop:
            block = self._block
            begin = stop if block is None else min(block.first, stop)
            if index < begin:
                index = replay.replay_stretch(run, index, begin, last=last)
                if replay.cut is not None:
                    return index
                continue
            assert block is not None
            # no group of records reaches into a block: its members are no entries
            assert index == block.first, (index, block.first)
            self._place(block, stop - index)
            index += min(len(block.jobs), stop - index)
            if index == block.first + len(block.jobs):
                self._block = next(self._blocks, None)
            else:
                self._block = EntryBlock(index, block.arrival, block.jobs[index - block.first :])
        replay.state.drop_tombstones()
        return index

    def _place(self, block: EntryBlock, number_max: int) -> None:
        """Make the first entries of a block live, at most so many."""
        records, state = self._replay.records, self._replay.state
        jobs = block.jobs[:number_max]
        if jobs[0].job_id[:RUN_BYTES] != records.run:
            records.begin_run(jobs[0].job_id)
        if not _place_together(state, jobs):
            for index, job in enumerate(jobs, block.first):
                self._place_one(job, index)
        state.arrival = max(state.arrival, block.arrival)
        state.records += len(jobs)

    def _place_one(self, job: ReplayedEntry, index: int) -> None:
        state = self._replay.state
        jobs, keys, key, uri = state.jobs, state.keys, job.key, job.uri
        if key in keys or (uri is not None and uri in keys) or job.job_id in jobs:
            state.place(job, instant_at(self._replay.records.data, self._run.offset(index)))
            return
        jobs[job.job_id] = keys[key] = job
        if uri is not None:
            keys[uri] = job
        state.tombstones.pop(key, None)


def _place_together(state: ReplayState, jobs: list[ReplayedEntry]) -> bool:
    """Make entries live, and return True; False: some meet others, and nothing has changed."""
    ids = [job.job_id for job in jobs]
    primary = [job.key for job in jobs]
    with_uri = [job for job in jobs if job.uri is not None]
    further = [job.uri for job in with_uri if job.uri is not None]
    live, keys, tombstones = state.jobs, state.keys, state.tombstones
    if (
        all(map(is_, map(live.setdefault, ids, jobs), jobs))
        and all(map(is_, map(keys.setdefault, primary, jobs), jobs))
        and all(map(is_, map(keys.setdefault, further, with_uri), with_uri))
    ):
        if tombstones and not tombstones.keys().isdisjoint(primary):
            for key in primary:
                tombstones.pop(key, None)
        return True
    for job in reversed(jobs):
        if live.get(job.job_id) is job:
            del live[job.job_id]
        for taken in (job.key, job.uri):
            if taken is not None and keys.get(taken) is job:
                del keys[taken]
    return False
