"""Options that all programs which talk to a daemon have: how to be let in.

Their names are those of the arguments of ``fastjournal.client.core.access.load_access``.
"""

from __future__ import annotations

from typing import Final

ENVIRONMENT: Final = {
    "tls_ca": "FASTJOURNAL_TLS_CA",
    "tls_cert": "FASTJOURNAL_TLS_CERT",
    "tls_key": "FASTJOURNAL_TLS_KEY",
    "auth_file": "FASTJOURNAL_AUTH_FILE",
}
"""The variable that stands for an option that is not given."""

HELP: Final = {
    "tls_ca": "Speak TLS, and trust the authorities in this PEM file.",
    "tls_cert": "This client's own certificate, PEM, where the daemon asks for one.",
    "tls_key": "Its key, PEM.",
    "auth_file": "File that holds the token for AUTH, mode 0600.",
}


def flag(name: str) -> str:
    """Return the option of that name, as the command line has it."""
    return f"--{name.replace('_', '-')}"
