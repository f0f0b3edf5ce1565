"""LISTEN against a real daemon over real sockets: a copy that follows it, also until a kill."""

from __future__ import annotations

import threading
from pathlib import Path

from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build


def test_notification_before_a_kill_is_durable(tmp_path: Path) -> None:
    heard: dict[bytes, int] = {}
    number = 0
    with DaemonProcess(tmp_path) as daemon:
        for _ in range(3):
            regex = build(
                Function.GET,
                b"^k",
                flags=Flag.LISTEN | Query.REGEX << QUERY_SHIFT,
                identifier=1,
                count=1,
            )
            with RawClient(daemon.address) as listener, RawClient(daemon.address) as writer:
                assert listener.ask(regex).code == ""
                enough = len(heard) + number + 200

                def listen(listener: RawClient = listener) -> None:
                    try:
                        while True:
                            told = listener.reply()
                            assert told.pairs
                            heard[told.pairs[0].key] = int(told.pairs[0].value)
                    except (EOFError, ConnectionError):
                        return

                hearing = threading.Thread(target=listen)
                hearing.start()
                while max(heard.values(), default=0) < enough:
                    number += 1
                    overwriting = Flag.OVERWRITE | Flag.PERSIST
                    key = b"k%d" % (number % 7)
                    writer.send(build(Function.SET, key, b"%d" % number, flags=overwriting))
                daemon.kill()
                hearing.join()
            daemon.start()
            with RawClient(daemon.address) as reader:
                for key, last in heard.items():
                    found = reader.ask(build(Function.GET, key, flags=Flag.DATA))
                    assert found.pairs, f"{key!r} was told, and is not there"
                    assert int(found.pairs[0].value) >= last
    assert len(heard) == 7
