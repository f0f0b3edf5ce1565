"""Poisons of the spool soak: bad and unusual records and files, and what has to become of each.

``REFUSED`` has requests that no daemon takes, ``DAMAGE`` bytes that are no record; the methods of
``Poisons`` have the other kinds. A kind puts one poison into the spool, as careless programs of
other languages would, and notes its effects, with which the end of a run is compared.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from fastjournal.clock import unique_timestamp
from fastjournal.errors import SpoolFailedError
from fastjournal.keys import build_journal_key
from fastjournal.protocol import Flag, Function, Request, ValueType, encode_request
from fastjournal.spool import DeadDirectory
from fastjournal.spool.format import FILE_HEADER, encode_record
from fastjournal.spool.slots import SLOT_SUFFIX, slot_name, slot_start
from tests.soak.spool_writer import DOMAIN, SLOT_SECONDS, VALUE_BYTES_MAX

if TYPE_CHECKING:
    from fastjournal.spool import Reason

SUSPECT_MARK: Final = b"suspect"
"""The gate ends the connection at a frame that holds this, until it is opened."""
DAY_US: Final = 86_400_000_000
FEW: Final = 4
"""Bound on the poisons of a kind that stay to the end."""
DEAL_SECONDS_MAX: Final = 60.0
"""So long poisons that found no slot, or a full disk, are tried again at the end."""
DAMAGE_CODES: Final = frozenset({"torn", "damaged"})


def set_request(
    key: bytes, value: bytes = b"poison", *, type_: int | None = ValueType.BUFFER, ahead_us: int = 0
) -> Request:
    """Return a SET of an entry that is persistent."""
    stamp = unique_timestamp() + ahead_us
    return Request(Function.SET, 0, int(Flag.PERSIST), stamp, key, None, type_, value)


def _of_version_2(key: bytes) -> bytes:
    frame = encode_request(set_request(key))
    return frame[:2] + b"\0\2" + frame[4:]


REFUSED: Final[dict[str, tuple[str, Callable[[bytes], Request | bytes]]]] = {
    "large value": ("too-large", lambda key: set_request(key, bytes(VALUE_BYTES_MAX + 1))),
    "record of many chunks": ("too-large", lambda key: set_request(key, bytes(300_000))),
    "empty key": ("bad-key", lambda _: set_request(b"")),
    "key over the maximum": ("bad-key", lambda key: set_request(key * 1000)),
    "unknown type of value": ("bad-value", lambda key: set_request(key, type_=200)),
    "read function": ("bad-request", lambda key: Request(Function.GET, 0, 0, 0, key)),
    "text": ("bad-request", lambda key: b"no request " + key),
    "half a request": ("bad-request", lambda key: encode_request(set_request(key))[:-3]),
    "another version of the protocol": ("unsupported-version", _of_version_2),
    "change of nothing": (
        "not-found",
        lambda key: Request(Function.NOT, 0, 0, unique_timestamp(), key),
    ),
}
"""Requests that go to dead/: name to code, and how to make one with a key of its own."""

DAMAGE: Final[dict[str, Callable[[Random], bytes]]] = {
    "random bytes": lambda draw: draw.randbytes(draw.randrange(20, 100)),
    "first part of a record": lambda draw: encode_record(draw.randbytes(90))[:60],
    "wrong checksum": lambda draw: encode_record(draw.randbytes(40))[:-4] + draw.randbytes(4),
    "size beyond the file": lambda draw: b"P\x03\xff\xff\xff" + draw.randbytes(30),
    "zero bytes": lambda draw: bytes(draw.randrange(9, 300)),
}
"""Bytes that are no record, and go to dead/: name to how to make some."""


class NoSlotError(Exception):
    """There is no slot to append to at this moment, or the disk is full: try again."""


class Poisons:
    """Puts poisons, each kind as often as another, and keeps their effects.

    Args:
        directory: The spool.
        random: Random numbers for all choices.
    """

    def __init__(self, directory: Path, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._number = 0
        self._times: Counter[str] = Counter()
        self._deck: list[str] = []
        self._kinds: dict[str, Callable[[], None]] = {
            "drop-in": self._good_drop_in,
            "drop-in that is there twice": partial(self._good_drop_in, times=2),
            "drop-in of the future": partial(self._good_drop_in, at_s=4_000_000_000),
            "slot of the past": self._old_slot,
            "empty drop-in": partial(self._empty, b""),
            "drop-in of a header": partial(self._empty, FILE_HEADER),
        }
        self._kinds |= {
            name: partial(self._refused, code, make) for name, (code, make) in REFUSED.items()
        }
        for name, make in DAMAGE.items():
            self._kinds[f"{name} in a slot"] = partial(self._damaged_slot, make)
            self._kinds[f"{name} in a drop-in"] = partial(self._damaged_drop_in, make)
        self._staying: dict[str, Callable[[], None]] = {
            "suspect": self._suspect,
            "clock far ahead": self._clock_ahead,
            "fifo": partial(self._ignored, os.mkfifo),
            "link": partial(self._ignored, lambda path: path.symlink_to("nothing")),
            "directory": partial(self._ignored, Path.mkdir),
        }
        self.jobs: set[str] = set()
        """Names of jobs that have to be handed out."""
        self.suspects: set[bytes] = set()
        """Frames that wait until the gate is opened, and are delivered then."""
        self.never: set[bytes] = set()
        """Frames that still wait at the end."""
        self.ignored: list[str] = []
        """Names of files that are nothing of a spool."""
        self._dead: dict[bytes, str] = {}
        """Frames that go to dead/, and their codes."""
        self._damage: list[bytes] = []
        self._gone: list[Path] = []

    # --- putting --------------------------------------------------------------------------------

    async def run(self, pause_s: float) -> None:
        """Put one poison after the other, until cancelled."""
        while True:
            await trio.sleep(self._random.expovariate(1 / pause_s))
            self._deal()

    async def deal_the_rest(self) -> None:
        """Put a poison of each kind that there was none of."""
        with trio.move_on_after(DEAL_SECONDS_MAX):
            while self.missing():
                self._deal()
                await trio.sleep(0.01)

    def missing(self) -> list[str]:
        """Return the kinds that there was no poison of."""
        return [name for name in {**self._kinds, **self._staying} if not self._times[name]]

    @property
    def count(self) -> int:
        """Poisons that were put."""
        return self._times.total()

    def _deal(self) -> None:
        """Put the next poison, if that can be done at this moment."""
        if not self._deck:
            staying = [name for name in self._staying if self._times[name] < FEW]
            self._deck = [*self._kinds, *staying]
            self._random.shuffle(self._deck)
        name = self._deck.pop()
        try:
            (self._kinds.get(name) or self._staying[name])()
        except (NoSlotError, OSError):
            self._deck.insert(0, name)
        else:
            self._times[name] += 1

    # --- kinds ----------------------------------------------------------------------------------

    def _good_drop_in(self, *, times: int = 1, at_s: int = 0) -> None:
        names, records = self._good_jobs()
        for _ in range(times):
            self._drop_in(FILE_HEADER + b"".join(records), at_s)
        self.jobs |= names

    def _old_slot(self) -> None:
        names, records = self._good_jobs()
        name = slot_name(self._random.randrange(10**9) * SLOT_SECONDS // 2)
        self._file(name, FILE_HEADER + b"".join(records))
        self.jobs |= names

    def _empty(self, data: bytes) -> None:
        self._gone.append(self._drop_in(data))

    def _refused(self, code: str, make: Callable[[bytes], Request | bytes]) -> None:
        made = make(self._name().encode())
        frame = made if isinstance(made, bytes) else encode_request(made)
        self._record(frame)
        self._dead[frame] = code

    def _damaged_slot(self, make: Callable[[Random], bytes]) -> None:
        data = make(self._random)
        self._append(data)
        self._damage.append(data)

    def _damaged_drop_in(self, make: Callable[[Random], bytes]) -> None:
        data = make(self._random)
        names, (record, *records) = self._good_jobs()
        self._drop_in(FILE_HEADER + record + data + b"".join(records))
        self.jobs |= names
        self._damage.append(data)

    def _suspect(self) -> None:
        _, frame = self._job(SUSPECT_MARK.decode())
        self._record(frame)
        self.suspects.add(frame)

    def _clock_ahead(self) -> None:
        _, frame = self._job(ahead_us=DAY_US)
        self._record(frame)
        self.never.add(frame)

    def _ignored(self, make: Callable[[Path], object]) -> None:
        name = f"20261120T080000Z-{self._name()}{SLOT_SUFFIX}"
        make(self._directory / name)
        self.ignored.append(name)

    # --- places ---------------------------------------------------------------------------------

    def _name(self, kind: str = "poison") -> str:
        """Return a name that no other has."""
        self._number += 1
        return f"{kind}.{self._number}"

    def _job(self, kind: str = "poison", *, ahead_us: int = 0) -> tuple[str, bytes]:
        """Return the name of a good job, and its frame."""
        name = self._name(kind)
        key = build_journal_key(DOMAIN, name, not_before_us=unique_timestamp())
        return name, encode_request(set_request(key, name.encode(), ahead_us=ahead_us))

    def _good_jobs(self) -> tuple[set[str], list[bytes]]:
        """Return the names of some good jobs, and their records."""
        made = [self._job() for _ in range(self._random.randint(1, 4))]
        return {name for name, _ in made}, [encode_record(frame) for _, frame in made]

    def _append(self, data: bytes) -> None:
        """Append bytes to the slot of this instant."""
        path = self._directory / slot_name(slot_start(time.time_ns() // 1000, SLOT_SECONDS))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            is_there = os.fstat(descriptor).st_nlink > 0
            if not is_there or os.write(descriptor, data) != len(data):
                raise NoSlotError
        finally:
            os.close(descriptor)

    def _record(self, frame: bytes) -> None:
        """Put a record into the slot of this instant, or into a drop-in."""
        if self._random.random() < 0.5:
            self._append(encode_record(frame))
        else:
            self._drop_in(FILE_HEADER + encode_record(frame))

    def _drop_in(self, data: bytes, at_s: int = 0) -> Path:
        """Make a drop-in of these bytes, under a name of its own; return its path."""
        stamp = slot_name(at_s or int(time.time())).removesuffix(SLOT_SUFFIX)
        return self._file(f"{stamp}-{self._name()}{SLOT_SUFFIX}", data)

    def _file(self, name: str, data: bytes) -> Path:
        """Make a file that is whole when it appears."""
        path, temporary = self._directory / name, self._directory / f".{self._name()}.fjs.tmp"
        try:
            temporary.write_bytes(data)
            os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    # --- what is held to ------------------------------------------------------------------------

    def problems(self, operator: Operator) -> list[str]:
        """Return what is not in dead/ once, under its code, and which files should be gone."""
        pieces = operator.pieces.values()
        torn = [raw for reason, raw in pieces if reason.code in DAMAGE_CODES]
        found = Counter(
            (raw, reason.code) for reason, raw in pieces if reason.code not in DAMAGE_CODES
        )
        problems = [
            f"{code}: {raw[:80]!r} is {found[raw, code]} times in dead/"
            for raw, code in self._dead.items()
            if found[raw, code] != 1
        ]
        problems += [
            f"dead/ has with {code}, and should not: {raw[:80]!r}"
            for raw, code in found
            if self._dead.get(raw) != code
        ]
        problems += [
            f"damage is not in dead/: {data[:80]!r}"
            for data in self._damage
            if not any(data in piece for piece in torn)
        ]
        problems += [f"not gone: {path}" for path in self._gone if path.exists()]
        left = (self._directory / name for name in self.ignored)
        return problems + [f"touched: {path}" for path in left if not os.path.lexists(path)]


class Operator:
    """Empties dead/ as an operator would, and keeps what was there.

    Args:
        spool: The directory.
    """

    def __init__(self, spool: Path) -> None:
        self._dead = DeadDirectory(spool)
        self.pieces: dict[str, tuple[Reason, bytes]] = {}
        """Reason and bytes by name: a piece that is put there again has the same name."""
        self.problems: list[str] = []

    async def run(self) -> None:
        """Empty it each second, until cancelled."""
        while True:
            await trio.sleep(1)
            self.empty()

    def empty(self) -> None:
        """Take the pieces that are whole."""
        for piece in self._dead.list():
            if piece.reason is None:
                continue  # its reason is being written
            try:
                raw = self._dead.read(piece.name)
                before = self.pieces.setdefault(piece.name, (piece.reason, raw))
                if before[1] != raw or len(raw) != piece.reason.bytes:
                    self.problems.append(f"dead/{piece.name} is there with other bytes")
                self._dead.remove(piece.name)
            except SpoolFailedError as error:
                self.problems.append(str(error))
