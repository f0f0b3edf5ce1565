"""Cost of a backlog of many slots: calls of the system and looks at names, for each slot."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fastjournal.protocol import Flag, Function, Reply, Request, ServerConnection, encode_request
from fastjournal.spool import format as form
from fastjournal.spool import slots
from fj_forwarder.delivery import Delivery
from fj_forwarder.sending.delivery_engine import DeliveryEngine
from fj_forwarder.storage import slot_file, slot_listing, slot_store

START_US = 1_795_161_600_000_000
SLOT_SECONDS = 10
RECORD_US = 100
"""Virtual time of a record: a slow forwarder, which lists the directory more often."""


class CountingOs:
    """Module ``os``, with its calls counted; a name in a listing is a call too."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self._counted(name, found) if callable(found) else found

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += len(os.listdir(*arguments)) if name == "scandir" else 1
            return function(*arguments, **named)

        return call


def numbered_slots(directory: Path, count: int, form_of_name: str) -> Iterator[Path]:
    """Write slots or drop-ins of one record each, all over."""
    for number in range(count):
        start_s = START_US // 1_000_000 - (number + 2) * SLOT_SECONDS
        request = Request(
            Function.SET, 0, Flag.PERSIST, start_s * 1_000_000, b"d:1:0:%d" % number, None, 1, b"v"
        )
        slot = slots.slot_name(start_s).removesuffix(slots.SLOT_SUFFIX)
        path = directory / form_of_name.format(slot=slot, number=number)
        path.write_bytes(form.FILE_HEADER + form.encode_record(encode_request(request)))
        yield path


def calls_for_each(
    directory: Path, count: int, form_of_name: str, patch: pytest.MonkeyPatch
) -> float:
    """Send a backlog of so many slots; return the calls of the system for a slot."""
    directory.mkdir()
    paths = list(numbered_slots(directory, count, form_of_name))
    counting = CountingOs()
    for module in (slots, slot_file, slot_listing, slot_store):
        patch.setattr(module, "os", counting)
    engine = DeliveryEngine(in_flight_max=1024, random=Random(1))
    now_us = START_US
    delivery = Delivery(str(directory), slot_seconds=SLOT_SECONDS, engine=engine, now_us=now_us)
    server = ServerConnection()
    while os.listdir(directory):
        assert now_us < START_US + 60_000_000 + count * 10_000, "some slots stay"
        delivery.fill(now_us, now_us)
        frames = engine.take(now_us)
        if not frames:
            now_us = max(delivery.next_due(now_us), now_us + 1)
            continue
        server.receive_data(frames)
        for request in server.next_events():
            now_us += RECORD_US
            delivery.handle(Reply(request.identifier), now_us)
    delivery.close()
    assert delivery.done == len(paths)
    return counting.calls.total() / count


@pytest.mark.parametrize(
    ("form_of_name", "calls_max"),
    [
        pytest.param("{slot}.fjs", 30, id="slots"),
        pytest.param("20261120T080000Z-{number}.fjs", 15, id="drop-ins"),
    ],
)
def test_backlog_of_many_slots_costs_each_slot_as_much_as_one_of_few(
    tmp_path: Path, form_of_name: str, calls_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = calls_for_each(tmp_path / "few", 400, form_of_name, monkeypatch)
    many = calls_for_each(tmp_path / "many", 3000, form_of_name, monkeypatch)
    assert many < min(1.5 * few, calls_max)
