"""A daemon whose disk is rebuilt after a power loss, and what got OK before.

Each sector that was not synced survives by itself, so a record may be lost while those behind it
are there. An acknowledged entry must be there after a repair: as it was, or as a request left it
that was on its way.
"""

from __future__ import annotations

from fastjournal.errors import LogCorruptError
from fastjournal.protocol import Flag, Function, decode_reply
from fastjournal.protocol.messages import Request
from fastjournald.config.options import Config
from fastjournald.engine.engine import Missing
from fastjournald.tables.entry import Entry
from tests.property.cold_values import still, value_of
from tests.property.crashing_daemon import LOG, CrashingDaemon, until_it_starts
from tests.property.subject import SECOND, request

KEYS = [b"a:1:0:x", b"a:1:0:y", b"a:2:0:z", b"b:9:0:x", b"plain", b"other"]
URIS = [b"u", b"v"]
VALUE_BYTES = (1, 40, 700, 3000)


def number_of(value: bytes) -> int:
    """Return which SET a value is from."""
    return int(value.split(b" ")[0])


class Version:
    """State of an entry at some moment since the last acknowledged one."""

    def __init__(self, entry: Entry, value: bytes, acknowledged: bool) -> None:
        self.entry = entry
        self.value = value
        """Read while it is there: what is gone may have left the disk."""
        self.acknowledged = acknowledged
        """Whether it was there at the last acknowledged moment."""
        self.keys = {entry.key}
        """Its primary key at the last acknowledged moment, and since."""
        self.gone = False
        self.superseded_by: Entry | None = None
        """The entry that took its URI while it was leased."""
        self.replaced_by: list[Entry] = []
        """Empty and gone: it was removed for itself."""


class RebuiltDaemon(CrashingDaemon):
    """Keeps account of what became of each entry since what was acknowledged last."""

    def __init__(self, seed: int, config: Config) -> None:
        self.versions: dict[int, Version] = {}
        self.marks: list[tuple[int, dict[int, bytes]]] = []
        """Bytes of the log, and the primary keys of the entries then."""
        self.number = 0
        self.asked: Request | None = None
        self.history: list[str] = []
        """Since the last start, for whoever looks into a failure."""
        self.repairs = 0
        self.found: list[tuple[bytes, bytes, bytes | None]] = []
        """Key, value and URI of the entries after the last start."""
        super().__init__(seed, config, exact=True)

    # --- what happens ---------------------------------------------------------------------------

    def ask(self) -> None:
        """Let time pass and carry out one request."""
        draw, engine = self.draw, self.engine
        self.clock.instant_us += draw.choice((0, 1, 1, 7000, 9 * SECOND))
        engine.advance(self.clock.instant_us)
        self.take_down()
        self.asked = self._drawn()
        asked = self.asked
        names = f"{Function(asked.function).name} {asked.flags!r} {asked.key!r}"
        token = asked.timeout and asked.timeout % 10**9
        self.history.append(f"{names} {asked.second_key!r} {asked.value[:5]!r} token={token}")
        answer = engine.handle("session", self.asked, self.clock.instant_us)
        while isinstance(answer, Missing):
            answer = engine.handle("session", self.asked, self.clock.instant_us, self.fetch(answer))
        self.tokens += sorted((entry.key, entry.token) for entry in engine.store if entry.token)
        del self.tokens[:-6]
        self.take_down()
        assert answer is not None
        self.history[-1] += f" -> {decode_reply(answer).error or 'done'}"
        self.asked = None

    def _drawn(self) -> Request:
        draw, now = self.draw, self.clock.instant_us
        function = draw.choices(
            [
                *(Function.SET, Function.DELETE, Function.NEXT, Function.RELEASE),
                *(Function.BURY, Function.KICK, Function.RENAME, Function.LINK, Function.TOUCH),
            ],
            (20, 4, 5, 3, 2, 2, 2, 1, 1),
        )[0]
        flags = Flag.PERSIST | draw.choice((Flag(0), Flag.OVERWRITE))
        key = draw.choice(KEYS)
        if function == Function.SET:
            self.number += 1
            value = b"%d " % self.number + b"v" * draw.choice(VALUE_BYTES)
            uri = draw.choice((None, *URIS))
            flags |= draw.choice((Flag(0), Flag.OVERWRITE))
            return request(function, key, value, uri=uri, flags=flags, at=now)
        if function == Function.NEXT:
            # a pop or a lease
            count = draw.choice((None, 3))
            return request(function, b"", flags=flags, at=now, count=count, timeout=5 * SECOND)
        if function in (Function.RENAME, Function.LINK):
            other = draw.choice([*KEYS, b"link"])
            return request(function, key, uri=other, flags=flags, at=now)
        token = None
        if self.tokens and draw.random() < 0.7 and function != Function.KICK:
            key, token = draw.choice(self.tokens)
            flags |= Flag.WORKED_ON
        ttl = 9 * SECOND if function == Function.TOUCH else None
        return request(function, key, flags=flags, at=now, timeout=token, ttl=ttl)

    def take_down(self) -> None:
        """Note what became of the entries since the last time; whole states are not compared."""
        store = self.engine.store
        now_there = {id(entry): entry for entry in store}
        fresh = [entry for at, entry in now_there.items() if at not in self.versions]
        asked = self.asked
        for version in self.versions.values():
            entry = version.entry
            if version.gone:
                continue
            if id(entry) in now_there:
                version.keys.add(entry.key)
                if entry.superseded and version.superseded_by is None and fresh:
                    version.superseded_by = fresh[0]
                continue
            version.gone = True
            by_request = asked is not None and asked.function in (Function.SET, Function.RENAME)
            if asked is not None and asked.function == Function.RENAME:
                # what has the key now
                standing = store.find(entry.key)
                version.replaced_by = [] if standing is None else [standing]
            elif by_request and fresh:
                version.replaced_by = fresh[:1]
            elif version.superseded_by is not None and (
                asked is None or asked.function != Function.DELETE
            ):
                version.replaced_by = [version.superseded_by]
        disk = still(self.engine, self.disk) if fresh else None
        for entry in fresh:
            value = value_of(self.engine, disk, LOG, entry)
            self.versions[id(entry)] = Version(entry, value, acknowledged=False)
        keys = {at: entry.key for at, entry in now_there.items()}
        self.marks.append((self.writer.appended, keys))

    def acknowledge(self) -> None:
        """Acknowledge every write that is settled by now."""
        super().acknowledge()
        settled = self.writer.settled
        known = [there for mark, there in self.marks if mark <= settled]
        if known:
            self.marks = [mark for mark in self.marks if mark[0] > settled]
            there = known[-1]
            for at in list(self.versions):
                version = self.versions[at]
                if at in there:
                    version.acknowledged = True
                    # no RENAME before is lost
                    version.keys = {there[at], *(keys[at] for _, keys in self.marks if at in keys)}
                elif version.acknowledged:
                    del self.versions[at]
                elif version.gone and not any(at in later for _, later in self.marks):
                    # came and went, both acknowledged
                    del self.versions[at]

    # --- power ----------------------------------------------------------------------------------

    def lose_sectors(self) -> None:
        """The power goes; start again, with a repair where there is damage."""
        before = self.versions
        values = {at: version.value for at, version in before.items()}
        self.disk = self.disk.crash(self.draw.getrandbits(32), sectors=True)
        self.versions, self.marks = {}, []
        self.steps = []
        try:
            self.recover()
        except LogCorruptError:
            self.repairs += 1
            until_it_starts(self, repair=True)
        self.found = [
            (entry.key, value_of(self.engine, self.disk.kill(), LOG, entry), entry.uri)
            for entry in self.engine.store
        ]
        self._check(before, values)
        self.history = []

    def _check(
        self,
        versions: dict[int, Version],
        values: dict[int, bytes],
    ) -> None:
        found = {(key, value) for key, value, _ in self.found}

        renamed = {values[at] for at, version in versions.items() if len(version.keys) > 1}

        def accounted(at: int, seen: frozenset[int] = frozenset()) -> bool:
            version = versions[at]
            number = number_of(values[at])
            if any((key, values[at]) in found for key in version.keys):
                return True
            if any(
                (key in version.keys or (uri is not None and uri == version.entry.uri))
                and (number_of(value) > number or value in renamed)
                for key, value, uri in self.found
            ):
                # gone for whatever reason, and its key or URI was set again
                return True
            if at in seen:
                return False
            if len(version.keys) > 1 and any(
                number_of(values[other]) > number
                and new.keys & version.keys
                and accounted(other, seen | {at})
                for other, new in versions.items()
            ):
                # its RENAME is lost, and its old key was set again, by an entry that went, too
                return True
            if not version.gone:
                # its lease is lost: the newer entry with its URI replaced it, and went, too
                newer = version.superseded_by
                return id(newer) in versions and accounted(id(newer), seen | {at})
            later = [
                other
                for other, new in versions.items()
                if number_of(values[other]) > number
                and (new.keys & version.keys or new.entry.uri == version.entry.uri is not None)
            ]
            later += [id(new) for new in version.replaced_by]
            return not version.replaced_by or any(
                other not in versions or accounted(other, seen | {at}) for other in later
            )

        history = "\n".join(self.history)
        for at, version in versions.items():
            if version.acknowledged:
                assert accounted(at), (
                    f"{history}\n{version.entry.key!r} {values[at][:8]!r} is lost: "
                    f"{sorted((key, value[:8]) for key, value in found)}"
                )
        known = set(values.values())
        for key, value in found:
            assert value in known, f"{key!r} {value[:8]!r} was gone, and returned"
