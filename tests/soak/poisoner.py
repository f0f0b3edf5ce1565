"""Poisoner of the spool soak: deals poisons of all kinds, and compares their effects at the end."""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from fastjournal.errors import SpoolFailedError
from fastjournal.printable import safe_text
from fastjournal.spool import DeadDirectory
from tests.soak.poison_place import NoSlotError, Place, Trace
from tests.soak.poisons import DAMAGE_CODES, POISONS, Poison

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastjournal.spool import Reason
    from fastjournal.spool.forwarder_status import ForwarderStatus

DEAL_SECONDS_MAX: Final = 60.0
"""So long poisons that found no slot, or a full disk, are tried again at the end."""


class Poisoner:
    """Puts poisons, each kind as often as another, and keeps their traces.

    Args:
        place: The spool.
        random: Draws the order.
    """

    def __init__(self, place: Place, random: Random) -> None:
        self._place = place
        self._random = random
        self._times: Counter[str] = Counter()
        self._deck: list[Poison] = []
        self._forms: dict[str, object] = {}
        self.traces: list[Trace] = []

    async def run(self, pause_s: float) -> None:
        """Put one poison after the other, until cancelled."""
        while True:
            await trio.sleep(self._random.expovariate(1 / pause_s))
            self.deal()

    async def deal_the_rest(self) -> None:
        """Put a poison of each kind that there was none of."""
        with trio.move_on_after(DEAL_SECONDS_MAX):
            while self.missing():
                self.deal()
                await trio.sleep(0.01)

    def deal(self) -> None:
        """Put the next poison, if that can be done at this moment."""
        if not self._deck:
            is_root = os.geteuid() == 0
            self._deck = [
                poison
                for poison in POISONS.values()
                if (not poison.times_max or self._times[poison.name] < poison.times_max)
                and (is_root or not poison.needs_root)
            ]
            self._random.shuffle(self._deck)
        poison = self._deck.pop()
        try:
            trace = poison.put(self._place)
        except NoSlotError:
            self._deck.insert(0, poison)
            return
        self._times[poison.name] += 1
        self.traces.append(trace)
        for name in (*trace.ignored, *trace.untouched):
            self._forms[name] = self._form(name)

    @property
    def count(self) -> int:
        """Poisons that were put."""
        return len(self.traces)

    def missing(self) -> list[str]:
        """Return the kinds that there was no poison of."""
        is_root = os.geteuid() == 0
        return [
            poison.name
            for poison in POISONS.values()
            if not self._times[poison.name] and (is_root or not poison.needs_root)
        ]

    def all(self, field: str) -> list[str]:
        """Return what all traces have in one of their fields for names."""
        return [name for trace in self.traces for name in getattr(trace, field)]

    def frames(self, field: str) -> list[bytes]:
        """Return what all traces have in one of their fields for frames."""
        return [frame for trace in self.traces for frame in getattr(trace, field)]

    def cure(self) -> None:
        """End the causes for which slots are left out."""
        for trace in self.traces:
            for cure in trace.cures:
                cure()

    # --- what is held to --------------------------------------------------------------------

    def unburied(self, operator: Operator) -> list[str]:
        """Return what is not in dead/ as it should be: frames under their codes, and damage."""
        frames = {raw: code for trace in self.traces for raw, code in trace.dead.items()}
        found: Counter[tuple[bytes, str]] = Counter()
        damage = []
        for reason, raw in operator.pieces.values():
            if reason.kind == "frame":
                found[raw, reason.code] += 1
            elif reason.code in DAMAGE_CODES:
                damage.append(raw)
            else:
                found[raw, reason.code] += 1
        problems = [
            f"{code}: {raw[:80]!r} is {found[raw, code]} times in dead/"
            for raw, code in frames.items()
            if found[raw, code] != 1 and raw
        ]
        problems += [
            f"dead/ has with {code}, and should not: {raw[:80]!r}"
            for raw, code in found
            if frames.get(raw) != code
        ]
        return problems + [
            f"damage is not in dead/: {data[:80]!r}"
            for data in self.frames("damage")
            if not any(data in piece for piece in damage)
        ]

    def misplaced(self) -> list[str]:
        """Return files that were changed, and files that should be gone."""
        changed = [name for name, form in self._forms.items() if self._form(name) != form]
        deleted = [*self.all("empty"), *self.all("gone")]
        left = [name for name in deleted if os.path.lexists(self._place.directory / name)]
        return [f"changed: {name!r}" for name in changed] + [f"not gone: {name!r}" for name in left]

    def misreported(self, status: ForwarderStatus | None, pending: set[bytes]) -> list[str]:
        """Return the fields of a status file that do not show what waits and what is left out.

        A kill of the daemon ends the lock of the locked entry for a moment: its change may be done.

        Args:
            status: Fields of the file.
            pending: Frames that are pending in the spool.
        """
        if status is None:
            return ["there is no status.json"]
        of_open = [trace for trace in self.traces if not trace.left_out]
        waiting = {frame for trace in of_open for frame in (*trace.never, *trace.late)} & pending
        suspects = set(self.frames("suspects"))
        expected = {
            "ignored": len(self.all("ignored")),
            "left_out": len(self.all("left_out")),
            "suspect": len(suspects),
            "delayed": len(waiting - suspects),
        }
        found = {field: getattr(status, field) for field in expected}
        return [] if found == expected else [f"status.json has {found} and not {expected}"]

    def unnamed(self, log: str) -> list[str]:
        """Return what the log of one forwarder should name once, and does not."""
        sentences = {
            "ignored": ": nothing of a spool; it is left alone",
            "left_out": "this slot is left out until it can be opened",
        }
        return [
            f"named {times} times: {name!r}"
            for field, sentence in sentences.items()
            for name in self.all(field)
            if (times := lines_with(log, f"/{safe_text(name)}", sentence)) != 1
        ]

    def named_again(self, logs: Iterable[str]) -> list[str]:
        """Return what the logs of all forwarders name more than once in the life of one."""
        problems = []
        for log in logs:
            said = [line for line in log.splitlines() if _is_told_once(line)]
            problems += [f"said {n} times: {line}" for line, n in Counter(said).items() if n > 1]
        everything = "\n".join(logs)
        return problems + [
            f"an empty file is named {times} times: {name!r}"
            for name in self.all("empty")
            if (times := lines_with(everything, f"/{safe_text(name)}", "without a record")) != 1
        ]

    def _form(self, name: str) -> object:
        """Return what a file is: type, mode, and its bytes or its target."""
        path = self._place.directory / name
        try:
            found = path.lstat()
            content: object = None
            if stat.S_ISREG(found.st_mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(found.st_mode):
                content = path.readlink()
        except FileNotFoundError:
            return None
        return found.st_mode, found.st_ino, content


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
                if before[1] != raw:
                    self.problems.append(f"dead/{piece.name} is there with other bytes")
                if len(raw) != piece.reason.bytes:
                    self.problems.append(f"dead/{piece.name} has {len(raw)} bytes")
                self._dead.remove(piece.name)
            except SpoolFailedError as error:
                self.problems.append(str(error))

    def unseen_codes(self, codes: set[str]) -> set[str]:
        """Return which of these codes, and of those of damage, no piece has."""
        return (codes | DAMAGE_CODES) - {reason.code for reason, _ in self.pieces.values()}


def lines_with(log: str, *texts: str) -> int:
    """Return how many lines of a log hold all of these texts."""
    return sum(all(text in line for text in texts) for line in log.splitlines())


def _is_told_once(line: str) -> bool:
    """Whether a line of the log names one piece, record or file that is named once."""
    texts = ("left out", "nothing of a spool", "ends the connection at the record")
    return any(text in line for text in texts) or ("dead/" in line and " bytes: " in line)
