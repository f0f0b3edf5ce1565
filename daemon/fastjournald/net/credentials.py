"""Certificates and tokens, as the options name them: read at the start, on SIGHUP, for a check.

The file of tokens is TOML, mode 0600:

    [[token]]
    name = "crawler"                      # for messages: letters, digits, . _ -
    token_sha256 = "5e88..."              # or: token = "...", at least 16 bytes
    rights = ["write", "next"]            # of: read, write, next, admin
    prefixes = ["crawl:", "config/"]      # of domains and plain keys; "": all
"""

from __future__ import annotations

import re
import ssl
from hashlib import sha256
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from fastjournal.errors import ConfigError
from fastjournal.limits import (
    AUTH_FILE_BYTES_MAX,
    AUTH_TOKEN_BYTES_MAX,
    AUTH_TOKENS_MAX,
    KEY_BYTES_MAX,
)
from fastjournal.printable import did_you_mean
from fastjournal.private import check_pem, read_private
from fastjournald.config.load import exposed_addresses
from fastjournald.config.options import Config
from fastjournald.engine.authorization import RIGHTS, Grant, Grants

TOKEN_BYTES_MIN = 16
"""Shortest plain token in the file; the length of a hashed token is unknown."""

PREFIXES_MAX = 1000

RISKY = ("listen", "http", "tls_cert", "tls_key", "tls_client_ca", "auth_tokens", "insecure")
"""Options that ``risks`` examines."""


class _Token(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    rights: list[Literal["read", "write", "next", "admin"]]
    prefixes: Annotated[list[str], Meta(min_length=1, max_length=PREFIXES_MAX)]
    token: str | None = None
    token_sha256: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    token: Annotated[list[_Token], Meta(min_length=1, max_length=AUTH_TOKENS_MAX)]


class Security(NamedTuple):
    """TLS contexts of the listeners, and tokens of the engine."""

    tls: ssl.SSLContext | None = None
    """For TCP connections; None: they are plain."""
    http_tls: ssl.SSLContext | None = None
    """For ``--http``, which is plain on loopback addresses. A client may show no certificate: it
    gets the paths that show no names."""
    grants: Grants | None = None
    """None: clients have no token to show."""


def load_security(config: Config) -> Security:
    """Read the files named by the options.

    Raises:
        ConfigError: A file cannot be used; the message contains no secret.
    """
    tls = http_tls = None
    if config.tls_cert:
        tls = load_tls(config)
        if exposed_addresses(config, "http"):
            http_tls = load_tls(config)
            if config.tls_client_ca:
                http_tls.verify_mode = ssl.CERT_OPTIONAL
    return Security(tls, http_tls, load_grants(config.auth_tokens) if config.auth_tokens else None)


def load_tls(config: Config) -> ssl.SSLContext:
    """Return the context of the listeners: TLS 1.2 or newer, without renegotiation.

    Raises:
        ConfigError: Certificate, key or authorities cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # some builds of Python take a connection that was cut off for one that was ended
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    # owner and mode are checked; ssl reads the file once more by its name
    read_private(config.tls_key, AUTH_FILE_BYTES_MAX, group_reads=True)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_passphrase)
    except ValueError as error:
        raise ConfigError(f"--tls-key: {error}", path=config.tls_key) from error
    except OSError as error:
        if isinstance(error, ssl.SSLError):
            check_pem(config.tls_cert, config.tls_key)
        raise ConfigError(
            f"--tls-cert, --tls-key: cannot be used: {_reason(error)}",
            path=config.tls_cert,
            hint="both are PEM, and the key is that of the first certificate",
        ) from error
    if config.tls_client_ca:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except OSError as error:
            raise ConfigError(
                f"--tls-client-ca: cannot be used: {_reason(error)}", path=config.tls_client_ca
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_grants(path: str) -> Grants:
    """Return the tokens of a file.

    Raises:
        ConfigError: It cannot be read, others could read it, or it has a bad value.
    """
    import tomllib  # noqa: PLC0415 - a start without tokens is faster

    data = read_private(path, AUTH_FILE_BYTES_MAX)
    try:
        file = msgspec.convert(tomllib.loads(data.decode()), _File)
    except tomllib.TOMLDecodeError as error:
        # its sentence may quote the file: show only the place
        where = str(error).rpartition("(")[2].rstrip(")")
        raise ConfigError(f"--auth-tokens: not TOML, {where}", path=path) from None
    except UnicodeDecodeError:
        raise ConfigError("--auth-tokens: not UTF-8", path=path) from None
    except RecursionError:
        raise ConfigError("--auth-tokens: nested too deep", path=path) from None
    except msgspec.ValidationError as error:
        unknown = re.search(r"unknown field `(.*?)`|enum value '(.*?)'", str(error))
        names = (*_Token.__struct_fields__, *RIGHTS)
        hint = did_you_mean(unknown[1] or unknown[2], names) if unknown else None
        raise ConfigError(f"--auth-tokens: {error}", path=path, hint=hint) from error
    except ValueError:
        raise ConfigError("--auth-tokens: a number has too many digits", path=path) from None
    grants = [_grant(token, path) for token in file.token]
    for what, number in (
        ("name", len({grant.name for grant in grants})),
        ("token", len({grant.digest for grant in grants})),
    ):
        if number < len(grants):
            raise ConfigError(
                f"--auth-tokens: the same {what} stands there twice", path=path, hint="remove one"
            )
    return Grants(grants)


def _grant(token: _Token, path: str) -> Grant:
    prefixes = tuple(prefix.encode() for prefix in token.prefixes)
    if max(map(len, prefixes)) > KEY_BYTES_MAX:
        raise ConfigError(
            f"--auth-tokens: {token.name}: a prefix has over {KEY_BYTES_MAX} bytes", path=path
        )
    rights = 0
    for right in token.rights:
        rights |= RIGHTS[right]
    return Grant(token.name, _digest(token, path), rights, prefixes)


def _digest(token: _Token, path: str) -> bytes:
    if (token.token is None) == (token.token_sha256 is None):
        raise ConfigError(
            f"--auth-tokens: {token.name}: give either token or token_sha256", path=path
        )
    if token.token is not None:
        secret = token.token.encode()
        if not TOKEN_BYTES_MIN <= len(secret) <= AUTH_TOKEN_BYTES_MAX:
            raise ConfigError(
                f"--auth-tokens: {token.name}: a token has {TOKEN_BYTES_MIN} to "
                f"{AUTH_TOKEN_BYTES_MAX} bytes",
                path=path,
                hint="fj-cli token new FILE makes one",
            )
        return sha256(secret).digest()
    assert token.token_sha256 is not None
    try:
        digest = bytes.fromhex(token.token_sha256)
    except ValueError:
        digest = b""
    if len(digest) != sha256().digest_size:
        raise ConfigError(
            f"--auth-tokens: {token.name}: token_sha256 is 64 hexadecimal digits", path=path
        )
    return digest


def _no_passphrase() -> str:
    raise ValueError("it has a passphrase: give a key without one")


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.lower().replace("_", " ")
    return error.strerror or str(error)


def risks(config: Config) -> list[str]:
    """Return what an administrator should know of addresses that other machines reach."""
    found = []
    for option, may, what in (
        ("listen", "may do everything", "tokens and data go"),
        ("http", "may read the names of all domains and jobs", "tokens and names go"),
    ):
        exposed = ", ".join(exposed_addresses(config, option))
        if exposed and not config.auth_tokens and not config.tls_client_ca:
            found.append(f"whoever reaches {exposed} {may}: no tokens, no client certificates")
        elif exposed and not config.tls_cert:
            found.append(f"{what} to {exposed} for everyone on the way to read: no TLS")
    return found
