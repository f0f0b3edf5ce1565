"""Socket activation: take over the listening sockets that a service manager has opened.

The manager keeps them open while the daemon restarts: clients that connect meanwhile wait in their
queues. The protocol of systemd, sd_listen_fds(3): LISTEN_PID is the process that they are for,
LISTEN_FDS how many there are, from descriptor 3 on, and LISTEN_FDNAMES their names.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from typing import NamedTuple

from fastjournal.errors import ConfigError
from fastjournal.program import positive_variable
from fastjournal.sockets import Place, parse_place, socket_address

FIRST_DESCRIPTOR = 3
SOCKETS_MAX = 1000
"""More than a unit has; a larger number is a mistake, and not all of them are checked."""

LISTEN = "listen"
HTTP = "http"
_NAMES_HINT = "FileDescriptorName=listen or FileDescriptorName=http in the socket unit"


class ActivatedSockets(NamedTuple):
    """Listening sockets of the service manager, by address."""

    listen: dict[Place, socket.socket]
    """For clients."""
    http: dict[Place, socket.socket]
    """For the page and the metrics; at most one."""


NO_SOCKETS = ActivatedSockets({}, {})


def take_over_sockets() -> ActivatedSockets:
    """Return the sockets that the service manager has handed over, and clear its variables.

    Raises:
        ConfigError: The variables are wrong, or a descriptor is no listening socket of a known
            name.
    """
    number = _number_of_sockets()
    names = os.environ.get("LISTEN_FDNAMES")
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        # not for the processes that this one starts
        os.environ.pop(variable, None)
    found = ActivatedSockets({}, {})
    for descriptor, name in _named(number, names):
        listener = _listening_socket(descriptor)
        address = socket_address(listener.getsockname())
        place = parse_place(address, f"LISTEN_FDS: descriptor {descriptor}")
        if name == HTTP and found.http:
            raise ConfigError("LISTEN_FDNAMES: http names two sockets", hint="give one, or none")
        by_address = found.http if name == HTTP else found.listen
        if place in by_address:
            raise ConfigError(f"LISTEN_FDS: two sockets listen on {address}", hint="give one")
        by_address[place] = listener
    return found


def _number_of_sockets() -> int:
    if positive_variable("LISTEN_PID") != os.getpid():
        return 0
    number = positive_variable("LISTEN_FDS") or 0
    if number > SOCKETS_MAX:
        raise ConfigError(
            f"LISTEN_FDS={number}: more than {SOCKETS_MAX} sockets",
            hint="the service manager sets this variable; start the program without it",
        )
    return number


def _named(number: int, names: str | None) -> Iterator[tuple[int, str]]:
    """Yield descriptor and name of each socket; without names all are for clients."""
    each = [LISTEN] * number if names is None else names.split(":")
    if number and len(each) != number:
        raise ConfigError(
            f"LISTEN_FDNAMES={names}: {len(each)} names for LISTEN_FDS={number}",
            hint="give each socket a name, or none",
        )
    for place in range(number):
        if each[place] not in (LISTEN, HTTP):
            raise ConfigError(
                f"LISTEN_FDNAMES: no such name: {each[place]}", hint=f"write {_NAMES_HINT}"
            )
        yield FIRST_DESCRIPTOR + place, each[place]


def _listening_socket(descriptor: int) -> socket.socket:
    try:
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError as error:
        raise _unusable(descriptor, f"{error.strerror}") from error
    if not is_socket:
        raise _unusable(descriptor, "this is no socket")
    listener = socket.socket(fileno=descriptor)
    if listener.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        raise _unusable(descriptor, "neither a TCP socket nor a unix socket")
    if listener.type != socket.SOCK_STREAM or not listener.getsockopt(
        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    ):
        raise _unusable(descriptor, "this socket does not listen for connections")
    if listener.family == socket.AF_UNIX and isinstance(listener.getsockname(), bytes):
        raise _unusable(descriptor, "an abstract unix socket, which no file mode protects")
    os.set_inheritable(descriptor, False)
    return listener


def _unusable(descriptor: int, reason: str) -> ConfigError:
    return ConfigError(
        f"LISTEN_FDS: descriptor {descriptor} cannot be used: {reason}",
        hint="a socket unit hands over ListenStream= with Accept=no",
    )
