"""Scripted daemon: answers as a test says, over real sockets. For tests of clients.

def answer(request):
    return [Reply(identifier=request.identifier)]

with ScriptedDaemon(answer) as daemon:
    SyncClient(daemon.address).nop()
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeAlias

from fastjournal.errors import ProtocolError
from fastjournal.protocol import (
    Function,
    Reply,
    Request,
    ServerConnection,
    encode_error,
    encode_reply,
)


class Do(Enum):
    """Action of a script besides sending bytes."""

    CLOSE = "close"
    """Close the connection that the request came on."""


Answer: TypeAlias = Iterable[Reply | bytes | Do]


class ScriptedDaemon:
    """Accepts connections until it is left; each has its own thread.

    A malformed or too large request is refused as a daemon does it, and its connection closed.

    Args:
        answer: Gets each request; returns what to do then: send replies (also to earlier requests,
            or none), send bytes as they are, close. Requests of all connections take turns.
        unix_path: Listen there instead of on a free port of the loopback interface.
        tls: Speak TLS; ``Do.CLOSE`` then cuts the connection off, without saying so by TLS.
        proves: Answer the NOP by which a client that connects again finds out whether a daemon is
            there (its timestamp is 0); False: ask the script about it too.
    """

    def __init__(
        self,
        answer: Callable[[Request], Answer],
        *,
        unix_path: str | None = None,
        tls: ssl.SSLContext | None = None,
        proves: bool = True,
    ) -> None:
        self._answer = answer
        self._proves = proves
        self._tls = tls
        self._turn = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.requests: list[Request] = []
        """Every request received, in order."""
        self.connections = 0
        """How many connections were accepted."""
        if unix_path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(unix_path)
            self._listener.listen()
            self.address = f"unix:{unix_path}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> ScriptedDaemon:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join()

    def drop_connections(self) -> None:
        """End every connection as a killed daemon does."""
        with self._turn:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._turn:
                self.connections += 1
                self._open.add(sock)
            thread = threading.Thread(target=self._shake_hands, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _shake_hands(self, sock: socket.socket) -> None:
        if self._tls is None:
            self._serve(sock)
            return
        wrapped = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        with self._turn:
            self._open.discard(sock)
            self._open.add(wrapped)
        try:
            wrapped.do_handshake()
        except OSError:
            self._part(wrapped)
        else:
            self._serve(wrapped)

    def _part(self, sock: ssl.SSLSocket) -> None:
        """Allow a refused client to read the reason: unread data would become a reset."""
        with contextlib.suppress(OSError), sock:
            sock.shutdown(socket.SHUT_WR)  # from here on it receives without TLS
            while sock.recv(65536):
                pass
        with self._turn:
            self._open.discard(sock)

    def _serve(self, sock: socket.socket) -> None:
        connection = ServerConnection()
        try:
            while data := sock.recv(65536):
                connection.receive_data(data)
                for request in connection.next_events():
                    if not self._carry_out(sock, request):
                        return
        except ProtocolError as error:
            refusal = encode_error(error.identifier, 0, f"{error.code} {error.message}")
            with contextlib.suppress(OSError):
                sock.sendall(refusal)
        except OSError:
            return
        finally:
            with self._turn:
                self._open.discard(sock)
                sock.close()

    def _carry_out(self, sock: socket.socket, request: Request) -> bool:
        if self._proves and request.function == Function.NOP and not request.timestamp:
            sock.sendall(encode_reply(Reply(request.identifier)))
            return True
        with self._turn:
            self.requests.append(request)
            for step in self._answer(request):
                if step is Do.CLOSE:
                    return False
                assert not isinstance(step, Do)
                sock.sendall(encode_reply(step) if isinstance(step, Reply) else step)
        return True
