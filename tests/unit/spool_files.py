"""Files of a spool: the records in them, and instants at which slots begin."""

from __future__ import annotations

from pathlib import Path
from random import Random

from fastjournal.client.core.address import parse_servers
from fastjournal.protocol import Flag, Function, Request, decode_request, encode_request
from fastjournal.spool import format as form
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from fj_forwarder.delivery import Delivery
from fj_forwarder.forwarder import Forwarder, ForwarderSettings
from fj_forwarder.sending.delivery_engine import DeliveryEngine

HOUR_US = 3_600_000_000
EIGHT = 1_795_161_600_000_000
"""2026-11-20T08:00:00Z, at which a slot begins."""


def requests_in(path: Path) -> list[Request]:
    """Decode a file that holds nothing but whole records."""
    data = path.read_bytes()
    assert data[:8] == form.FILE_HEADER
    at, found = 8, []
    while at < len(data):
        end = form.record_end(data, at)
        assert end > 0
        if data[at] == form.PENDING:
            found.append(decode_request(data[at + 5 : end - 4]))
        at = end
    return found


def record(name: str | int, value: bytes = b"v") -> bytes:
    """Return the record of a SET."""
    key = str(name).encode()
    request = Request(Function.SET, 0, Flag.PERSIST, EIGHT, key, value_type=1, value=value)
    return form.encode_record(encode_request(request))


def a_delivery(
    directory: Path, *, in_flight_max: int = 1024, slot_seconds: int = 3600, now_us: int = EIGHT
) -> tuple[Delivery, DeliveryEngine]:
    """Return a delivery from a spool, and its engine."""
    engine = DeliveryEngine(in_flight_max=in_flight_max, random=Random(1))
    delivery = Delivery(str(directory), slot_seconds=slot_seconds, engine=engine, now_us=now_us)
    return delivery, engine


def a_forwarder(directory: Path, daemon: ScriptedDaemon | str, *, once: bool = True) -> Forwarder:
    """Return a forwarder from a spool to a daemon, or to an address."""
    address = daemon if isinstance(daemon, str) else daemon.address
    servers = parse_servers(address)
    return Forwarder(ForwarderSettings(spool=str(directory), servers=servers, once=once, seed=1))
