"""Credentials of a client to a daemon: TLS, a certificate of its own, a token for AUTH.

Unix sockets never speak TLS. A TCP address does where ``tls`` says so, or where it is written
``tls://HOST:PORT``, which trusts what the system trusts unless ``tls`` says more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fastjournal.client.core.address import Address, TcpAddress
from fastjournal.client.core.calls import refusal
from fastjournal.client.core.failures import (
    LATER,
    OTHER_PORT_HINT,
    TOKEN_HINT,
    cannot_connect,
    turned_away,
)
from fastjournal.errors import BadRequestError, CannotConnectError, ConfigError, ProtocolError
from fastjournal.limits import AUTH_TOKEN_BYTES_MAX
from fastjournal.private import check_pem, read_private
from fastjournal.protocol import (
    ClientConnection,
    Function,
    Reply,
    Request,
    ValueType,
    encode_request,
)

if TYPE_CHECKING:
    import ssl

Tls: TypeAlias = "ssl.SSLContext | bool | str | os.PathLike[str] | None"
"""A context; True: trust what the system trusts; a path: trust the authorities in that file."""

_IDENTIFIER = 1


class Credentials(msgspec.Struct, frozen=True):
    """Credentials of a client. The token is in no representation of this."""

    tls: ssl.SSLContext | None = None
    """For every TCP address; None: only for those that say ``tls://``."""
    auth: bytes | None = None
    """The token of AUTH, which is sent before anything else; None: none is sent."""

    def __repr__(self) -> str:
        return f"Credentials(tls={self.tls!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        # rich prefers it to the representation, and that of msgspec has all fields
        return [("tls", self.tls)]

    def context_for(self, address: Address) -> ssl.SSLContext | None:
        """Return the TLS context for an address; None: it is plain."""
        if not isinstance(address, TcpAddress):
            return None
        return system_context() if self.tls is None and address.tls else self.tls

    def first_request(self, address: Address, *, prove: bool) -> bytes:
        """Return the AUTH to send first; without a token to ``prove`` the daemon a NOP, or none.

        With TLS 1.3 too a first answer is waited for: a client learns by it that its certificate
        is refused.
        """
        if self.auth is None:
            prove = prove or self.context_for(address) is not None
            nop = Request(function=Function.NOP, identifier=_IDENTIFIER)
            return encode_request(nop) if prove else b""
        return encode_request(
            Request(
                function=Function.AUTH,
                identifier=_IDENTIFIER,
                value_type=ValueType.BUFFER,
                value=self.auth,
            )
        )


class FirstAnswer:
    """Takes bytes until the reply to the first request is complete.

    So a client detects a daemon at the other end: a proxy whose daemon is away accepts connections
    too, and a daemon that has no room refuses them.

    Args:
        address: Named in errors.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection = ClientConnection()

    def receive_data(self, data: bytes | bytearray) -> bool:
        """Take what was received (``b""``: the peer closed); return whether it succeeded by now.

        Raises:
            RefusedError: The daemon does not take the token; code ``auth-failed``.
            CannotConnectError: It takes no connection now, or is no fastjournald.
        """
        try:
            self._connection.receive_data(data)
            reply = self._connection.next_event()
        except ProtocolError as error:
            if not data:
                raise self._closed() from error
            raise CannotConnectError(
                f"{self._address} does not speak the protocol: {error.message}",
                code=error.code,
                hint=OTHER_PORT_HINT,
            ) from error
        if not isinstance(reply, Reply):
            if not data:
                raise self._closed()
            return False
        if not reply.error:
            return True
        reason = refusal(reply.error)
        if reply.identifier != _IDENTIFIER or reason.code in LATER:
            raise turned_away(reason)
        reason.hint = TOKEN_HINT
        raise reason

    def _closed(self) -> CannotConnectError:
        return cannot_connect(self._address, OSError("it closed the connection"))


def make_credentials(tls: Tls = None, auth: str | bytes | None = None) -> Credentials:
    """Return what the options ``tls`` and ``auth`` of a client mean.

    Raises:
        BadRequestError: The token is empty or too long.
        ConfigError: The file of authorities cannot be used.
    """
    if isinstance(auth, str):
        auth = auth.encode()
    if auth is not None and not 0 < len(auth) <= AUTH_TOKEN_BYTES_MAX:
        raise BadRequestError(f"a token has 1 to {AUTH_TOKEN_BYTES_MAX} bytes", code="bad-token")
    if tls is None or tls is False:
        context = None
    elif tls is True:
        context = system_context()
    elif isinstance(tls, (str, os.PathLike)):
        context = make_context(tls)
    else:
        context = tls
    return Credentials(context, auth)


def load_credentials(
    *,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    auth_file: str | None = None,
) -> Credentials:
    """Return what the options of the programs mean, which have the names of these arguments.

    Raises:
        ConfigError: A file cannot be used.
    """
    tls = make_context(tls_ca, tls_cert, tls_key) if tls_ca or tls_cert or tls_key else None
    return Credentials(tls, read_auth_file(auth_file) if auth_file else None)


def system_context() -> ssl.SSLContext:
    """Return a TLS context that trusts what the system trusts."""
    return make_context(None)


def make_context(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> ssl.SSLContext:
    """Return a TLS context, version 1.2 or newer, that checks certificate and name of the daemon.

    Args:
        ca: PEM file of the authorities to trust; None: those of the system.
        cert: PEM file of the client's own certificate, for a daemon that asks for one.
        key: PEM file of its key, without a passphrase; None: it is in ``cert``.

    Raises:
        ConfigError: A file cannot be read or used.
    """
    import ssl  # noqa: PLC0415 - loads OpenSSL, which few short programs need

    context = ssl.create_default_context()
    if ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load(ca, lambda: context.load_verify_locations(ca))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # some builds of Python take a connection that was cut off for one that was ended
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    if cert is not None:

        def load_chain() -> None:
            try:
                context.load_cert_chain(cert, key, password=_no_passphrase)
            except ssl.SSLError:
                check_pem(cert, key)
                raise

        _load(cert, load_chain)
    elif key is not None:
        raise ConfigError("a key without its certificate", path=key, hint="give both, or none")
    return context


def read_auth_file(path: str | os.PathLike[str]) -> bytes:
    """Return the token in a file: all of it, without white space around it.

    Raises:
        ConfigError: It cannot be read, others could read it, or there is no token in it.
    """
    token = read_private(path, AUTH_TOKEN_BYTES_MAX + 2).strip()
    if not token:
        raise ConfigError("holds no token", path=path, hint="fj-cli token new FILE makes one")
    return token


def _load(path: str | os.PathLike[str], load: Callable[[], object]) -> None:
    try:
        load()
    except ValueError as error:  # raised for a passphrase that there is not
        raise ConfigError(str(error), path=path) from error
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot be used for TLS: {reason}",
            path=path,
            hint="give PEM files, and the key of the certificate",
        ) from error


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase: give a key without one")
