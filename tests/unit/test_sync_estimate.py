"""Sync estimate: the choice between the event loop and the thread, on simulated disks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from random import Random

import pytest

from fastjournald.group_commit.commit import INLINE_SECONDS_MAX, SAMPLE_SECONDS_MAX, SyncEstimate

FAST, SLOW = INLINE_SECONDS_MAX / 5, INLINE_SECONDS_MAX * 5


def choices(estimate: SyncEstimate, syncs: Iterable[float]) -> list[bool]:
    """Where each sync runs: True is the thread."""
    chosen = []
    for seconds in syncs:
        chosen.append(estimate.choose())
        estimate.add(seconds)
    return chosen


@pytest.mark.parametrize("usual", [0.0, FAST, INLINE_SECONDS_MAX / 2])
@pytest.mark.parametrize("slowest", [SLOW, 1.0, 60.0])
def test_sync_that_is_slow_once_does_not_switch(usual: float, slowest: float) -> None:
    syncs = [usual] * 50 + [slowest] + [usual] * 50
    assert not any(choices(SyncEstimate(), syncs))


def test_slow_disk_is_left_to_the_thread_within_three_syncs() -> None:
    assert choices(SyncEstimate(), [SLOW] * 6) == [False] * 3 + [True] * 3
    assert choices(SyncEstimate(), [FAST] * 50 + [SLOW] * 6)[-3:] == [True] * 3
    assert choices(SyncEstimate(), [2 * INLINE_SECONDS_MAX] * 8)[-1]


@pytest.mark.parametrize("slowest", [SLOW, 60.0])
def test_disk_that_is_fast_again_returns_within_thirty_syncs(slowest: float) -> None:
    chosen = choices(SyncEstimate(), [slowest] * 50 + [FAST] * 30)
    assert chosen[49:53] == [True] * 4
    assert not chosen[-1]


def test_disk_at_the_limit_does_not_switch_to_and_fro() -> None:
    draw = Random(1)
    syncs = [draw.uniform(0.85, 1.1) * INLINE_SECONDS_MAX for _ in range(10_000)]
    estimate = SyncEstimate()
    chosen = choices(estimate, [SLOW] * 10 + syncs)
    assert sum(before != after for before, after in itertools.pairwise(chosen)) == 1
    assert chosen[-1]


def test_sync_of_a_client_alone_stays_in_the_loop_up_to_twice_the_limit() -> None:
    estimate = SyncEstimate()
    for seconds, alone, in_thread in (
        (1.9 * INLINE_SECONDS_MAX, True, False),
        (1.9 * INLINE_SECONDS_MAX, False, True),
        (1.9 * INLINE_SECONDS_MAX, True, True),
        (1.4 * INLINE_SECONDS_MAX, True, False),
        (2.1 * INLINE_SECONDS_MAX, True, True),
    ):
        estimate.mean_seconds = seconds
        assert estimate.choose(alone=alone) is in_thread


def test_syncs_that_are_often_slow_go_to_the_thread_though_most_are_fast() -> None:
    syncs = ([FAST] * 3 + [0.05]) * 20
    assert choices(SyncEstimate(), syncs)[-1]


def test_mean_of_sync_times_is_bounded_by_what_one_sync_counts_for() -> None:
    estimate = SyncEstimate()
    choices(estimate, [60.0] * 1000)
    assert estimate.mean_seconds <= SAMPLE_SECONDS_MAX
