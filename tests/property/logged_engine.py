"""An engine with a log on a simulated disk, without sockets: asked at random, and restarted."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fastjournal.cmdlog.recovery.recover import recover
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.protocol import Flag, Function, Reply, Request, decode_reply
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.engine.engine import Scan, Settings
from fastjournald.recovery.recover import load_engine
from tests.property.crash_requests import draw_request
from tests.property.subject import SECOND, START, request

LOG = "/log"


class LoggedEngine:
    """The engine.

    Args:
        seed: Seed of all requests.
        settings: Its settings.
        disk: With a log; None: an empty one.
        now: Its time in microseconds.
    """

    def __init__(
        self,
        seed: int,
        settings: Settings,
        *,
        disk: SimulatedDisk | None = None,
        now: int = START,
    ) -> None:
        self.draw = random.Random(seed)
        self.settings = settings
        self.disk = disk or SimulatedDisk(seed)
        if disk is None:
            self.disk.mkdir(LOG)
        self.now = now
        self.tokens: list[tuple[bytes, int]] = []
        self.start()

    def start(self) -> None:
        """Start with what is on the disk."""
        found = recover(self.disk, LOG, now_us=self.now)
        assert not found.diagnostics
        seed = self.draw.randbytes(8)
        self.engine = load_engine(found.state, self.settings, self.append, seed=seed, now=self.now)
        self.writer = LogWriter(
            self.disk,
            LOG,
            segment_bytes_max=3000,
            sync=SyncPolicy.ALWAYS,
            active=found.active,
            sealed=found.sealed,
            segment_start=self.engine.journal.log.segment_start,
        )

    def append(self, data: bytes, records: int, now: int) -> int:
        """Append to the log."""
        return self.writer.append(data, records, now)

    def restart(self) -> None:
        """End by SIGKILL behind a write, and start again."""
        self.writer.flush()
        self.disk = self.disk.kill()
        self.start()

    def segments(self) -> list[bytes]:
        """Return the segments on the disk."""
        names = [name for name in self.disk.listdir(LOG) if name.endswith(".log")]
        return [self.disk.read(f"{LOG}/{name}") for name in names]

    def ask(self, asked: Request, session: str = "session") -> Reply | None:
        """Return the reply; None: it waits. Leases run out between the steps of a scan."""
        data = self.engine.handle(session, asked, self.now)
        while isinstance(data, Scan) or data is None:
            if data is None:
                return None
            scan = data
            while (data := self.engine.step(scan, self.now)) is None:
                self.now += self.draw.choice((0, 1, 9 * SECOND))
        return decode_reply(data)

    def step(self, keys: Sequence[bytes], *, exact: bool = True) -> None:
        """Let time pass, and ask for something."""
        draw = self.draw
        self.now += draw.choice((0, 1, 1000, SECOND, 9 * SECOND))
        if exact or draw.random() < 0.9:
            asked = draw_request(draw, self.now, self.tokens, exact=exact, keys=keys)
        else:
            fields = {"uri": b"", "timeout": draw.choice((None, SECOND))}
            asked = request(Function.GET, flags=Flag.WORKED_ON, at=self.now, **fields)
        reply = self.ask(asked, draw.choice(("session", "session", "other")))
        leases = asked.function in (Function.NEXT, Function.GET)
        if reply is not None and leases and reply.timeout and reply.pairs:
            self.tokens += [(pair.key, reply.timeout) for pair in reply.pairs]
            del self.tokens[:-10]
