"""Certificates for tests: an authority, what it signs, and what nobody should trust."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import NamedTuple

import trustme


class Files(NamedTuple):
    """A certificate and its key, as files."""

    cert: str
    key: str


class Authority:
    """An authority whose certificate and signatures are files below a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.ca = trustme.CA()
        self._directory = directory
        self.path = str(directory / f"{name}.pem")
        self.ca.cert_pem.write_to_path(self.path)

    def sign(self, name: str, *hosts: str, not_after: datetime.datetime | None = None) -> Files:
        """Write a certificate for these hosts (the loopback address) and its key."""
        signed = self.ca.issue_cert(*(hosts or ("127.0.0.1",)), not_after=not_after)
        files = Files(str(self._directory / f"{name}.crt"), str(self._directory / f"{name}.key"))
        Path(files.cert).write_bytes(b"".join(pem.bytes() for pem in signed.cert_chain_pems))
        Path(files.key).write_bytes(signed.private_key_pem.bytes())
        Path(files.key).chmod(0o600)
        return files

    def server_context(self, *hosts: str) -> ssl.SSLContext:
        """Return a context for a server on these hosts."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # as the daemon's: what is cut off has not ended
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
        self.ca.issue_cert(*(hosts or ("127.0.0.1",))).configure_cert(context)
        return context


LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
"""As ``not_after``: an expired certificate."""
