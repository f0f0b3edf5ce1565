"""Credentials of a client to a daemon: TLS, a certificate of its own, a token for AUTH.

Unix sockets never speak TLS. A TCP address does where ``tls`` says so, or where it is written
``tls://HOST:PORT``, which trusts what the system trusts unless ``tls`` says more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fastjournal.client.core.address import Address, Servers, TcpAddress, parse_servers
from fastjournal.client.core.calls import refusal
from fastjournal.client.core.failures import (
    HTTP_ANSWERED,
    LATER,
    OTHER_PORT_HINT,
    TOKEN_HINT,
    cannot_connect,
    is_http,
    turned_away,
)
from fastjournal.client.core.settings import Settings, config_files, find_daemon
from fastjournal.errors import BadRequestError, CannotConnectError, ConfigError, ProtocolError
from fastjournal.limits import AUTH_TOKEN_BYTES_MAX
from fastjournal.options import ENVIRONMENT, flag
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

_why_not_found: tuple[str, str] | None = None
"""Why no client of this process connects to a daemon that it does not name, and what to do."""


def forbid_found(why: tuple[str, str] | None) -> None:
    """Have clients connect only to daemons that the program names, for tests.

    Args:
        why: Sentence of the error, and what to do; None: they connect again.
    """
    global _why_not_found  # noqa: PLW0603 - it holds for the process, as the clock does
    _why_not_found = why


def check_found() -> None:
    """Check that a client may use a daemon that the program does not name.

    Raises:
        ConfigError: A daemon for tests runs in this process.
    """
    if _why_not_found is not None:
        message, hint = _why_not_found
        raise ConfigError(message, hint=hint)


class Credentials(msgspec.Struct, frozen=True):
    """Credentials of a client. The token is in no representation of this."""

    tls: ssl.SSLContext | None = None
    """For every TCP address; None: only for those that say ``tls://``."""
    auth: bytes | None = None
    """The token of AUTH, which is sent before anything else; None: none is sent."""
    name: bytes = b""
    """Name of the client, for people who look at workers; empty: none."""
    is_found: bool = False
    """The program has named no address, so it was found in the settings, or is the default."""

    def check_allowed(self) -> None:
        """Check before a connection; raise what ``check_found`` does."""
        if self.is_found:
            check_found()

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
            prove = prove or bool(self.name) or self.context_for(address) is not None
            nop = Request(function=Function.NOP, identifier=_IDENTIFIER, key=self.name)
            return encode_request(nop) if prove else b""
        return encode_request(
            Request(
                function=Function.AUTH,
                identifier=_IDENTIFIER,
                key=self.name,
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
            spoken = HTTP_ANSWERED if is_http(data) else error.message
            raise CannotConnectError(
                f"{self._address} does not speak the protocol: {spoken}",
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


def find_credentials(
    address: str | None, tls: Tls = None, auth: str | bytes | None = None, name: str = ""
) -> tuple[Servers, Credentials]:
    """Return the addresses and credentials that these arguments of a client mean.

    Without addresses they are those of the environment, the client file or the default (see
    ``settings``), but for ``tls`` and ``auth`` where these are given. With addresses nothing else
    is read: no variable sends a token to a server that the program names.

    Raises:
        BadRequestError: An address is none, or the token is empty or too long.
        ConfigError: A variable or a file is wrong, or a file that it names cannot be used.
    """
    if address is not None:
        return parse_servers(address), make_credentials(tls, auth, name)
    found = find_daemon({}, os.environ, config_files(os.environ))
    for setting in ENVIRONMENT:
        if (auth if setting == "auth_file" else tls) is not None:
            found.pop(setting, None)
    given, others = make_credentials(tls, auth), credentials_of(found)
    credentials = Credentials(
        others.tls if tls is None else given.tls,
        others.auth if auth is None else given.auth,
        name.encode(),
        is_found=True,
    )
    return parse_servers(found["server"]), credentials


def credentials_of(settings: Settings) -> Credentials:
    """Return the credentials that these settings name; their files are read now.

    Raises:
        ConfigError: A file cannot be used; the hint says where its name came from.
    """
    files = {name: file for name, file in settings.items() if name != "server"}
    try:
        return load_credentials(**files)
    except ConfigError as error:
        for name, file in files.items():
            if error.path == file and (source := settings.sources[name]) != flag(name):
                named = f"{name} of {source}" if source not in ENVIRONMENT.values() else source
                error.hint = "; ".join(filter(None, [f"named by {named}", error.hint]))
                break
        raise


def make_credentials(
    tls: Tls = None, auth: str | bytes | None = None, name: str = ""
) -> Credentials:
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
    return Credentials(context, auth, name.encode())


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
