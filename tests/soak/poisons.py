"""Poisons of the spool soak: each kind of bad record, file, name, mode and owner, and its effects.

A kind is a function that puts one poison into a ``Place`` and returns its ``Trace``: what the
forwarder has to make of it. ``POISONS`` has all kinds by name. The two tables at the top have the
kinds that differ only in their bytes: ``REFUSED`` has requests that no daemon takes, ``DAMAGE`` has
bytes that are no record.

``UNREACHABLE`` names the error codes about one record that no poison can have, and why; a test
compares the codes of all kinds with those of the forwarder.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec

from fastjournal.clock import unique_timestamp
from fastjournal.protocol import Flag, Function, Request, ValueType, encode_request
from fastjournal.spool.format import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    MAGIC,
    blank_ends,
    encode_record,
    erased_ends,
)
from fastjournal.spool.slots import SLOT_SUFFIX, slot_name
from tests.soak.poison_place import Access, NoSlotError, Place, Trace, set_request
from tests.soak.spool_writer import VALUE_BYTES_MAX

SUSPECT_MARK: Final = b"suspect"
"""The gate ends the connection at a frame that holds this, until it is opened."""

TEXT, NUMBER, LOCKED = b"poison text", b"poison number", b"poison locked"
FIXTURES: Final = {
    TEXT: (ValueType.STRING, b"text"),
    NUMBER: (ValueType.INTEGER, b"\x7f"),
    LOCKED: (ValueType.BUFFER, b""),
}
"""Entries of the daemon at which refused requests aim: key to type and value."""

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US
SKEW_US: Final = 60 * SECOND_US
"""A timestamp further ahead is refused by the daemon for now."""
OTHER_USER: Final = 54_005
FEW: Final = 2
"""Bound on the poisons of a kind that stay to the end: names that are logged, listed and open."""


Put = Callable[[Place], Trace]
"""Puts one poison there."""


class Poison(NamedTuple):
    """Kind of poison."""

    name: str
    put: Put
    times_max: int
    """Bound on the times in a run; 0: none."""
    needs_root: bool


POISONS: Final[dict[str, Poison]] = {}


def _write(
    function: int, key: bytes, second_key: bytes | None = None, value: bytes | None = None
) -> Request:
    """Return a request with an integer as its value, if it has one."""
    value_type = None if value is None else ValueType.INTEGER
    return Request(function, 0, 0, unique_timestamp(), key, second_key, value_type, value or b"")


def _lease_lost() -> Request:
    flags = int(Flag.WORKED_ON)
    return Request(Function.DELETE, 0, flags, unique_timestamp(), TEXT, timeout=1)


def _of_version_2(key: bytes) -> bytes:
    frame = encode_request(set_request(key))
    return frame[:2] + b"\0\2" + frame[4:]


REFUSED: Final[dict[str, tuple[str, Callable[[bytes], Request | bytes]]]] = {
    "value over the maximum": (
        "too-large",
        lambda key: set_request(key, value=bytes(VALUE_BYTES_MAX + 1)),
    ),
    "size over the maximum": (
        "too-large",
        lambda _: _write(Function.TRUNCATE, TEXT, value=b"\0\1\0\0"),
    ),
    "empty key": ("bad-key", lambda _: set_request(b"")),
    "key over the maximum": ("bad-key", lambda key: set_request(key * 1000)),
    "priority over the maximum": (
        "bad-key",
        lambda key: set_request(b"work:300:0:" + key, second_key=b"http://x/"),
    ),
    "unknown type of value": ("bad-value", lambda key: set_request(key, value_type=200)),
    "no value": ("bad-value", lambda key: set_request(key, value=b"", value_type=None)),
    "read function": ("bad-request", lambda key: _write(Function.GET, key)),
    "unknown function": ("bad-request", lambda key: _write(999, key)),
    "missing argument": ("bad-request", lambda key: _write(Function.PAUSE, key)),
    "text": ("bad-request", lambda key: b"no request " + key),
    "no bytes": ("bad-request", lambda _: b""),
    "half a request": ("bad-request", lambda key: encode_request(set_request(key))[:-3]),
    "two requests": ("bad-request", lambda key: encode_request(set_request(key)) * 2),
    "another version of the protocol": ("unsupported-version", _of_version_2),
    "addition to a string": (
        "type-mismatch",
        lambda _: _write(Function.ADD, TEXT, value=b"\1"),
    ),
    "addition beyond the width": (
        "overflow",
        lambda _: _write(Function.ADD, NUMBER, value=b"\1"),
    ),
    "change of nothing": ("not-found", lambda key: _write(Function.NOT, key)),
    "new name that is taken": ("exists", lambda _: _write(Function.RENAME, TEXT, NUMBER)),
    "lease of another worker": ("lease-lost", lambda _: _lease_lost()),
}
"""Requests that go to dead/: name to code, and how to make one with a key of its own."""

UNREACHABLE: Final = {
    "not-owner": "UNLOCK alone has it, and a spool takes no UNLOCK",
    "bad-regex": "only functions that read take an expression",
    "bad-cursor": "only functions that read take a cursor",
    "unknown-function": "the forwarder sends no function that its own release does not know",
    "worked-on": "LINK and RENAME to a leased key wait as the change of a locked entry does",
    "forbidden": "the daemon of the soak has no tokens",
    "not-readable": "the disk of the daemon has no bad sectors",
}
"""Codes that keep a record alone or send it to dead/ and that no poison has, with the reason."""

WAITING: Final = {
    "locked": "change of a locked entry",
    "clock-skew": "clock far ahead",
}
"""Codes that keep a record, and the poisons that have them."""

DAMAGE: Final[dict[str, Callable[[Random], bytes]]] = {
    "random bytes": lambda draw: draw.randbytes(draw.randrange(20, 100)),
    "first part of a record": lambda draw: encode_record(draw.randbytes(90))[
        : draw.randrange(20, 90)
    ],
    "wrong checksum": lambda draw: encode_record(draw.randbytes(40))[:-4] + draw.randbytes(4),
    "size over the maximum": lambda draw: b"P\x04\0\0\1" + draw.randbytes(30),
    "size beyond the file": lambda draw: b"P\x03\xff\xff\xff" + draw.randbytes(30),
    "unknown state": lambda draw: b"?" + encode_record(draw.randbytes(40))[1:],
    "zero bytes": lambda draw: bytes(draw.randrange(9, 300)),
    "less than a head": lambda _: b"P\0",
}
"""Bytes that are no record, and go to dead/: name to how to make some."""

DAMAGE_CODES: Final = frozenset({"torn", "damaged"})


def poison(*, name: str = "", times_max: int = 0, needs_root: bool = False) -> Callable[[Put], Put]:
    """Declare a kind of poison, named as its function."""

    def declare(put: Put) -> Put:
        kind = name or put.__name__.replace("_", " ")
        POISONS[kind] = Poison(kind, put, times_max, needs_root)
        return put

    return declare


def _refused(code: str, make: Callable[[bytes], Request | bytes], place: Place) -> Trace:
    made = make(place.name().encode())
    frame = made if isinstance(made, bytes) else encode_request(made)
    place.record(frame)
    return Trace(dead={frame: code})


def _in_slot(make: Callable[[Random], bytes], place: Place) -> Trace:
    data = make(place.random)
    place.append(data)
    return Trace(damage=[data])


def _in_drop_in(make: Callable[[Random], bytes], place: Place) -> Trace:
    data = make(place.random)
    names, (record, *records) = place.jobs()
    place.drop_in(FILE_HEADER + record + data + b"".join(records))
    return Trace(jobs=names, damage=[data])


def _alone(make: Callable[[Random], bytes], place: Place) -> Trace:
    data = make(place.random)
    (place.drop_in if place.random.random() < 0.5 else place.old_slot)(data)
    return Trace(damage=[data])


for _name, (_code, _make) in REFUSED.items():
    poison(name=_name)(partial(_refused, _code, _make))
for _name, _damage in DAMAGE.items():
    poison(name=f"{_name} in a slot")(partial(_in_slot, _damage))
    poison(name=f"{_name} in a drop-in")(partial(_in_drop_in, _damage))
    poison(name=f"{_name} as a file")(partial(_alone, _damage))


# --- files whose jobs are delivered -------------------------------------------------------------


@poison()
def good_drop_in(place: Place) -> Trace:
    names, records = place.jobs()
    place.drop_in(FILE_HEADER + b"".join(records))
    return Trace(jobs=names)


@poison()
def drop_in_without_a_header(place: Place) -> Trace:
    names, records = place.jobs()
    place.drop_in(b"".join(records))
    return Trace(jobs=names)


@poison()
def drop_in_of_1970_or_of_the_future(place: Place) -> Trace:
    names, records = place.jobs()
    at_s = place.random.choice((0, time.time() + 10**9))
    place.drop_in(FILE_HEADER + b"".join(records), at_s=at_s)
    return Trace(jobs=names)


@poison()
def drop_in_of_a_long_name(place: Place) -> Trace:
    names, records = place.jobs()
    label = place.name().ljust(200 - len("20261120T080000Z-.fjs"), "x")
    place.drop_in(FILE_HEADER + b"".join(records), label=label)
    return Trace(jobs=names)


@poison()
def drop_in_of_a_name_beyond_ascii(place: Place) -> Trace:
    names, records = place.jobs()
    place.drop_in(FILE_HEADER + b"".join(records), label=f"žluťoučký 工作 {place.name()}")
    return Trace(jobs=names)


@poison()
def drop_in_that_is_there_twice(place: Place) -> Trace:
    names, records = place.jobs()
    for _ in range(2):
        place.drop_in(FILE_HEADER + b"".join(records))
    return Trace(jobs=names)


@poison()
def drop_in_with_erased_records(place: Place) -> Trace:
    names, records = place.jobs()
    _, frame = place.job()
    head, crc = erased_ends(frame)
    begin, end = blank_ends(100)
    erased = head + frame + crc + begin + bytes(91) + end
    place.drop_in(FILE_HEADER + erased + erased.join(records))
    return Trace(jobs=names)


@poison()
def drop_in_with_a_large_record(place: Place) -> Trace:
    names, records = place.jobs()
    frame = encode_request(set_request(place.name().encode(), value=bytes(300_000)))
    place.drop_in(FILE_HEADER + encode_record(frame) + b"".join(records))
    return Trace(jobs=names, dead={frame: "too-large"})


@poison()
def slot_of_the_past(place: Place) -> Trace:
    names, records = place.jobs()
    place.old_slot(FILE_HEADER + b"".join(records))
    return Trace(jobs=names)


@poison(times_max=1)
def slot_of_the_future(place: Place) -> Trace:
    names, records = place.jobs()
    place.file(slot_name(4_000_000_000), FILE_HEADER + b"".join(records))
    return Trace(jobs=names)


@poison()
def clock_a_little_ahead(place: Place) -> Trace:
    name, frame = place.job(ahead_us=SKEW_US + SECOND_US)
    place.record(frame)
    return Trace(jobs=[name])


# --- files that are deleted ---------------------------------------------------------------------


@poison()
def empty_drop_in(place: Place) -> Trace:
    return Trace(empty=[place.drop_in(b"").name])


@poison()
def drop_in_of_a_header(place: Place) -> Trace:
    return Trace(empty=[place.drop_in(FILE_HEADER).name])


@poison()
def empty_slot(place: Place) -> Trace:
    return Trace(gone=[place.old_slot(b"").name])


# --- records that wait --------------------------------------------------------------------------


@poison(times_max=FEW)
def clock_far_ahead(place: Place) -> Trace:
    _, frame = place.job(ahead_us=DAY_US)
    place.record(frame)
    return Trace(never=[frame])


@poison(times_max=FEW)
def change_of_a_locked_entry(place: Place) -> Trace:
    request = set_request(LOCKED, value=place.name().encode())
    frame = encode_request(msgspec.structs.replace(request, flags=Flag.PERSIST | Flag.OVERWRITE))
    place.record(frame)
    return Trace(late=[frame])


@poison(times_max=2 * FEW)
def suspect(place: Place) -> Trace:
    _, frame = place.job(SUSPECT_MARK.decode())
    place.record(frame)
    return Trace(late=[frame], suspects=[frame])


# --- slots that are left out --------------------------------------------------------------------


@poison(times_max=FEW)
def slot_of_another_version(place: Place) -> Trace:
    _, records = place.jobs()
    header = MAGIC + (2).to_bytes(FILE_HEADER_BYTES - len(MAGIC))
    make = place.random.choice((place.drop_in, place.old_slot))
    name = make(header + b"".join(records)).name
    return Trace(left_out=[name], untouched=[name])


def _closed(place: Place, close: Access) -> Trace:
    """Make a drop-in that the forwarder may not open until its owner and mode are right."""
    _, frame = place.job()
    path = place.drop_in(FILE_HEADER + encode_record(frame), access=close)
    owner = place.directory.stat()

    def cure() -> None:
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(0o640)

    return Trace(late=[frame], left_out=[path.name], cures=[cure])


@poison(times_max=FEW)
def drop_in_that_nobody_may_read(place: Place) -> Trace:
    return _closed(place, lambda path: path.chmod(0))


@poison(times_max=FEW)
def drop_in_that_nobody_may_write(place: Place) -> Trace:
    return _closed(place, lambda path: path.chmod(0o440))


@poison(times_max=FEW, needs_root=True)
def drop_in_of_another_owner(place: Place) -> Trace:
    def close(path: Path) -> None:
        os.chown(path, OTHER_USER, OTHER_USER)
        path.chmod(0o640)

    return _closed(place, close)


# --- files that are nothing of a spool ----------------------------------------------------------


def _ignored(place: Place, make: Callable[[Path], object], name: str = "") -> Trace:
    name = name or f"20261120T080000Z-{place.name()}{SLOT_SUFFIX}"
    path = place.directory / name
    try:
        make(path)
    except OSError as error:
        with suppress(OSError):
            path.unlink()  # made, and not filled: the disk is full
        raise NoSlotError from error
    return Trace(ignored=[name])


def _write_job(place: Place) -> Callable[[Path], object]:
    """Return what writes a whole file with a job, which nobody may send."""
    data = FILE_HEADER + encode_record(place.job()[1])
    return lambda path: path.write_bytes(data)


@poison(times_max=FEW)
def link_to_a_slot(place: Place) -> Trace:
    target = place.directory.parent / place.name("elsewhere")
    _ignored(place, _write_job(place), f"../{target.name}")
    return _ignored(place, lambda path: path.symlink_to(target))


@poison(times_max=FEW)
def link_to_nothing(place: Place) -> Trace:
    return _ignored(place, lambda path: path.symlink_to("nothing"))


@poison(times_max=FEW)
def fifo(place: Place) -> Trace:
    return _ignored(place, os.mkfifo)


@poison(times_max=FEW)
def directory_in_the_place_of_a_slot(place: Place) -> Trace:
    name = slot_name(place.random.randrange(10**9))
    return _ignored(place, Path.mkdir, name)


@poison(times_max=FEW)
def directory_in_the_place_of_a_drop_in(place: Place) -> Trace:
    return _ignored(place, Path.mkdir)


@poison(times_max=FEW)
def socket_in_the_place_of_a_drop_in(place: Place) -> Trace:
    def bind(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))

    return _ignored(place, bind)


@poison(times_max=FEW, needs_root=True)
def device(place: Place) -> Trace:
    return _ignored(place, lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5)))


@poison(times_max=FEW)
def file_of_an_unknown_name(place: Place) -> Trace:
    return _ignored(place, _write_job(place), f"{place.name()}.txt")


@poison(times_max=FEW)
def name_over_the_maximum(place: Place) -> Trace:
    label = place.name().ljust(201 - len("20261120T080000Z-.fjs"), "x")
    return _ignored(place, _write_job(place), f"20261120T080000Z-{label}{SLOT_SUFFIX}")


@poison(times_max=1)
def name_without_a_label(place: Place) -> Trace:
    return _ignored(place, _write_job(place), f"20261120T080000Z-{SLOT_SUFFIX}")


@poison(times_max=FEW)
def name_of_no_instant(place: Place) -> Trace:
    return _ignored(place, _write_job(place), f"20261399T080000Z-{place.name()}{SLOT_SUFFIX}")


@poison(times_max=FEW)
def name_that_is_not_printable(place: Place) -> Trace:
    name = f"20261120T080000Z-\x1b[31m\n{place.name()}{SLOT_SUFFIX}"
    return _ignored(place, _write_job(place), name)


@poison(times_max=FEW)
def name_that_is_no_text(place: Place) -> Trace:
    name = os.fsdecode(b"20261120T080000Z-\xff%b.fjs" % place.name().encode())
    return _ignored(place, _write_job(place), name)


# --- files that nobody names --------------------------------------------------------------------


@poison(times_max=FEW)
def file_that_is_being_made(place: Place) -> Trace:
    name = f".20261120T080000Z-{place.name()}{SLOT_SUFFIX}.tmp"
    _ignored(place, _write_job(place), name)
    return Trace(untouched=[name])


@poison(times_max=FEW)
def fifo_among_the_dead(place: Place) -> Trace:
    name = f"dead/{place.name()}.json"
    _ignored(place, os.mkfifo, name)
    return Trace(untouched=[name])
