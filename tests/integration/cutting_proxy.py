"""Proxy that loses replies: the daemon carries a request out, and the connection ends then."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

from fastjournal.protocol import Function, Request, ServerConnection
from tests.integration.cli_process import TIMEOUT_S


class CuttingProxy:
    """Passes bytes on to a daemon; loses the next reply to some functions, once each.

    Args:
        address: Unix socket of the daemon.
        functions: Functions whose next reply is lost.
    """

    def __init__(self, address: str, *functions: Function) -> None:
        self._path = address.removeprefix("unix:")
        self.to_cut = list(functions)
        self.asked: list[int] = []
        """Functions of all requests that were passed on."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        # a close alone does not wake a thread that accepts
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(TIMEOUT_S)
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            daemon = socket.socket(socket.AF_UNIX)
            daemon.connect(self._path)
            self._sockets += [client, daemon]
            lost = threading.Event()
            for thread in (
                threading.Thread(target=self._pass_requests, args=(client, daemon, lost)),
                threading.Thread(target=_pass_replies, args=(client, daemon, lost)),
            ):
                self._threads.append(thread)
                thread.start()

    def _pass_requests(
        self, client: socket.socket, daemon: socket.socket, lost: threading.Event
    ) -> None:
        requests = ServerConnection(value_bytes_max=1 << 20)
        with suppress(OSError):
            while data := client.recv(65536):
                requests.receive_data(data)
                while isinstance(request := requests.next_event(), Request):
                    self.asked.append(request.function)
                    if request.function in self.to_cut:
                        self.to_cut.remove(Function(request.function))
                        lost.set()
                daemon.sendall(data)
        _end(daemon)


def _pass_replies(client: socket.socket, daemon: socket.socket, lost: threading.Event) -> None:
    with suppress(OSError):
        while (data := daemon.recv(65536)) and not lost.is_set():
            client.sendall(data)
    _end(client)
    _end(daemon)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
