"""The retry queue in bounded memory: what may be dropped of a record, and what may not."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import SKIP_AFTER, SUSPECT_LOSSES
from fastjournal.protocol import (
    Flag,
    Function,
    Reply,
    Request,
    ServerConnection,
    encode_request,
)
from fastjournal.spool import format as form
from fj_forwarder.sending.delivery_engine import PoisonSearch
from fj_forwarder.storage import retry_queue
from fj_forwarder.storage.retry_queue import RetryQueue
from fj_forwarder.storage.slot_file import Retry, SlotFile, Verdict
from tests.unit.spool_files import EIGHT as START_US
from tests.unit.spool_files import a_delivery
from tests.unit.test_forwarder_slotfile import open_slot, records, write


def starts(queue: RetryQueue, retry: Retry) -> list[int]:
    found = [piece.offset for piece in retry.slot.take_again(retry, 100, 10**6)]
    queue.remove(retry)
    return found


def evict_all(file: SlotFile) -> list[tuple[int, int]]:
    taken = [(piece.offset, piece.end) for piece in file.take(100, 10**6)]
    for offset, _ in taken:
        file.evict(offset)
    return taken


def test_merged_range_leaves_out_suspects_that_are_remembered_one_by_one(tmp_path: Path) -> None:
    file = open_slot(write(tmp_path, *records(6)))
    queue = RetryQueue(ranges_max=2)
    places = evict_all(file)
    for number, (start, end) in enumerate(places):
        losses = SUSPECT_LOSSES if number in (1, 3) else 0
        queue.add(Retry(file, start, end, START_US, 1, losses))
    assert queue.ordinary.first(START_US).merged, "there are four, and two may be"
    wanted = [places[number][0] for number in (0, 2, 4, 5)]
    found = []
    while (retry := queue.ordinary.first(START_US)) is not None:
        found += starts(queue, retry)
    assert found == wanted
    for number in (1, 3):
        retry = queue.first_suspect(START_US)
        assert retry is not None
        assert starts(queue, retry) == [places[number][0]]
    file.close()


def test_suspect_that_is_remembered_no_more_is_in_the_range_around_it(tmp_path: Path) -> None:
    file = open_slot(write(tmp_path, *records(4)))
    queue = RetryQueue(ranges_max=2)
    places = evict_all(file)
    for start, end in places:
        queue.add(Retry(file, start, end, START_US, 1, SUSPECT_LOSSES))
    found = []
    while (retry := queue.first_suspect(START_US)) is not None:
        found += starts(queue, retry)
    assert found == [start for start, _ in places]
    file.close()


def test_merging_keeps_apart_what_is_delivered_and_only_to_be_erased(tmp_path: Path) -> None:
    file = open_slot(write(tmp_path, *records(8)))
    queue = RetryQueue(ranges_max=2)
    places = evict_all(file)
    for number, (start, end) in enumerate(places):
        verdict = Verdict("", "") if number % 2 else None
        queue.add(Retry(file, start, end, START_US, 1, verdict=verdict))
    delivered = [retry for retry in queue if retry.verdict is not None]
    assert sorted(retry.start for retry in delivered) == [start for start, _ in places[1::2]]
    file.close()


def test_records_that_could_not_be_erased_are_not_sent_again_however_many_are_delayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ADD that is sent twice is added twice."""
    monkeypatch.setattr(retry_queue.RetryQueue.__init__, "__defaults__", (2,))
    frames = [
        encode_request(Request(Function.ADD, 1, Flag.PERSIST, at, b"n-%d" % at, None, 3, bytes(8)))
        for at in range(START_US, START_US + 10)
    ]
    write(tmp_path, *map(form.encode_record, frames))
    delivery, engine = a_delivery(tmp_path, in_flight_max=10)
    fails = True
    erase = SlotFile.erase

    def erase_or_fail(self: SlotFile, offset: int, turn: int | None = None) -> None:
        if fails:
            raise SpoolFailedError("cannot erase")
        erase(self, offset, turn)

    monkeypatch.setattr(SlotFile, "erase", erase_or_fail)
    server = ServerConnection()
    sent = 0
    for now_us in range(START_US, START_US + 120_000_000, 1_000_000):
        fails = now_us < START_US + 40_000_000
        delivery.fill(now_us, now_us)
        if frames_now := engine.take(now_us):
            server.receive_data(frames_now)
        while isinstance(request := server.next_event(), Request):
            sent += 1
            delivery.handle(Reply(request.identifier), now_us)
    assert sent == len(frames)
    assert delivery.done == len(frames)
    delivery.close()


def test_search_does_not_pass_over_the_same_record_each_time() -> None:
    search = PoisonSearch(Random(7))
    passed = []
    for _ in range(100):
        for _ in range(SKIP_AFTER):
            search.found_suspect()
        passed.append(search.skip())
        search.reset()
    assert 20 < sum(passed) < 80
