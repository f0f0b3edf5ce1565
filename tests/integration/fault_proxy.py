"""Fault proxy for HTTP: one client's network to a store, which delays and loses requests.

Each client has a proxy of its own, so one may be cut off while the others are served. A request
meets one ``Fate``, drawn from the seed by the shares of the moment. In both directions a request
may be lost: before the server has it, or behind the work, with its reply.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

_BODY = b"<Error><Code>%b</Code></Error>"
_SERVER_SECONDS = 60.0
"""Far longer than the server takes for a request."""
_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Fate(Enum):
    """What becomes of a request."""

    PASS = "pass"
    """It is carried out and answered."""
    DROP = "drop"
    """The connection ends before the server has it."""
    CUT = "cut"
    """It is carried out, and the connection ends in the midst of the reply."""
    LATE = "late"
    """The connection ends; it is carried out later, when its sender has given up or died."""
    REFUSE = "refuse"
    """It is answered 503, without the work."""
    FAIL = "fail"
    """It is carried out, and answered 500."""
    SWALLOW = "swallow"
    """Black hole on the way to the server: no work, no answer."""
    SILENCE = "silence"
    """Black hole on the way back: it is carried out, and no answer comes."""


@dataclass(frozen=True)
class Faults:
    """Faults of a moment."""

    shares: Mapping[Fate, float] = field(default_factory=dict)
    """Share of the requests that meet a fate; the rest passes."""
    delay_seconds: float = 0.0
    """Each request waits so long before it is passed on."""
    late_seconds: float = 1.0
    """Longest time after which a late request is carried out."""


class FaultProxy:
    """An HTTP proxy on a free port of the loopback interface.

    Args:
        server: Address of the server, ``http://host:port``.
        seed: Of the fates.
        faults: At the beginning.
    """

    def __init__(self, server: str, seed: int = 0, faults: Faults | None = None) -> None:
        self._server = urlsplit(server).netloc
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self._clients: set[socket.socket] = set()
        self._closed = threading.Event()
        self.faults = faults or Faults()
        """May be replaced at any time; requests that came before meet the former ones."""
        self.fates: Counter[Fate] = Counter()
        """Requests by what became of them."""
        self._listener = _Listener(("127.0.0.1", 0), _Handler)
        self._listener.proxy = self
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,))
        self.address = f"http://127.0.0.1:{self._listener.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._listener.shutdown()
        self._thread.join()
        self.cut()
        self._listener.server_close()  # waits for the threads

    def cut(self) -> None:
        """End all connections, as a network does that goes away."""
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def draw(self) -> tuple[Fate, Faults, float]:
        """Return the fate of a request, and how late it is where it is late."""
        with self._lock:
            faults = self.faults
            chance, late = self._draw.random(), self._draw.uniform(0, faults.late_seconds)
            fate = Fate.PASS
            for each, share in faults.shares.items():
                if chance < share:
                    fate = each
                    break
                chance -= share
            self.fates[fate] += 1
        return fate, faults, late

    def register(self, client: socket.socket) -> None:
        """Know a connection, so that it can be cut."""
        with self._lock:
            self._clients.add(client)
        if self._closed.is_set():
            client.shutdown(socket.SHUT_RDWR)

    def unregister(self, client: socket.socket) -> None:
        """The connection has ended."""
        with self._lock:
            self._clients.discard(client)

    def sleep(self, seconds: float) -> None:
        """Wait, at the longest until the proxy is closed."""
        if seconds:
            self._closed.wait(seconds)

    def carry_out(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Have the server carry out a request; return status, headers and body of its reply."""
        connection = http.client.HTTPConnection(self._server, timeout=_SERVER_SECONDS)
        try:
            connection.request(method, path, body or None, dict(headers))
            reply = connection.getresponse()
            content = reply.read()
            kept = {n: v for n, v in reply.getheaders() if n.lower() not in _HOP_HEADERS}
            length = reply.getheader("content-length")
            kept["Content-Length"] = (length or "0") if method == "HEAD" else str(len(content))
            return reply.status, kept, content
        finally:
            connection.close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 64
    proxy: FaultProxy

    def handle_error(self, *_: Any) -> None:
        """Say nothing of clients that were killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self.server.proxy.register(self.connection)

    def finish(self) -> None:
        self.server.proxy.unregister(self.connection)
        with suppress(OSError):
            super().finish()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _meet(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy = self.server.proxy
        fate, faults, late = proxy.draw()
        proxy.sleep(faults.delay_seconds)
        request = self.command, self.path, dict(self.headers), body
        match fate:
            case Fate.DROP:
                self._hang_up()
            case Fate.LATE:
                self._hang_up()
                proxy.sleep(late)
                proxy.carry_out(*request)
            case Fate.REFUSE:
                self._answer(503, {}, _BODY % b"SlowDown")
            case Fate.SWALLOW:
                self._fall_silent()
            case Fate.SILENCE:
                proxy.carry_out(*request)
                self._fall_silent()
            case Fate.FAIL:
                proxy.carry_out(*request)
                self._answer(500, {}, _BODY % b"InternalError")
            case Fate.CUT:
                self._answer(*proxy.carry_out(*request), cut=True)
                self._hang_up()
            case Fate.PASS:
                self._answer(*proxy.carry_out(*request))

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = _meet  # noqa: N815 - named by the library

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False
    ) -> None:
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/xml"} | headers
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        content = b"" if self.command == "HEAD" else body
        data = "\r\n".join([*lines, "", ""]).encode("latin-1") + content
        self.wfile.write(data[: len(data) // 2] if cut else data)

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _fall_silent(self) -> None:
        """Keep the connection until the client or the proxy ends it."""
        self.close_connection = True
        with suppress(OSError):
            while self.connection.recv(65536):
                pass
