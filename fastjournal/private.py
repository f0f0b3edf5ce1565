"""Reading files with secrets: only their owner may be able to read or change them."""

from __future__ import annotations

import os
import stat

from fastjournal.errors import ConfigError

_PEM_BYTES = 1 << 20
"""Far more than a chain of certificates has."""


def read_private(
    path: str | os.PathLike[str], bytes_max: int, *, group_reads: bool = False
) -> bytes:
    """Return the content of a file that only this user can read.

    Args:
        path: The file; mode 0600 or less, and its owner is this user or root.
        bytes_max: A larger one is refused.
        group_reads: Its group may read it: mode 0640.

    Raises:
        ConfigError: It cannot be read, or others could read or change it; the message has nothing
            of its content.
    """
    try:
        # a FIFO without a writer must not hold up the start
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(
            f"cannot read: {error.strerror}",
            path=path,
            hint="give the path of a file that this user can read",
        ) from error
    try:
        with open(descriptor, "rb") as file:
            # status of the open file: the name may be of another file now
            status = os.fstat(descriptor)
            _check(path, status, 0o640 if group_reads else 0o600)
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"cannot read: {error.strerror}", path=path) from error
    if len(data) > bytes_max:
        raise ConfigError(f"has over {bytes_max} bytes", path=path)
    return data


def check_pem(cert: str | os.PathLike[str], key: str | os.PathLike[str] | None) -> None:
    """Name the file that lacks a part, of two that OpenSSL does not accept: it says ``PEM lib``.

    Args:
        cert: File of the certificate chain.
        key: File of its key; None: it is in ``cert``.

    Raises:
        ConfigError: There is no certificate, or no key.
    """
    if b"-----BEGIN CERTIFICATE-----" not in _pem(cert):
        raise ConfigError("has no certificate in PEM form", path=cert)
    if b" PRIVATE KEY-----" not in _pem(cert if key is None else key):
        if key is None:
            hint = "name the file of its key: --tls-key"
            raise ConfigError("has a certificate, but not its private key", path=cert, hint=hint)
        raise ConfigError("has no private key in PEM form", path=key)


def _pem(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read(_PEM_BYTES)


def _check(path: str | os.PathLike[str], status: os.stat_result, mode_max: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError("is not a regular file", path=path)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 & ~mode_max:
        raise ConfigError(
            f"has mode {mode:04o}: others than its owner have access to the secrets in it",
            path=path,
            hint=f"chmod {mode_max:o} {os.fspath(path)}",
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"belongs to user {status.st_uid}, who could change it",
            path=path,
            hint=f"chown {os.geteuid()} {os.fspath(path)}",
        )
