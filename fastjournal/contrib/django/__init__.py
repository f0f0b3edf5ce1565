"""Django application: ``enqueue`` when the transaction commits, and a worker command.

``INSTALLED_APPS`` has ``"fastjournal.contrib.django"``, and the settings have

    FASTJOURNAL = {
        "server": "127.0.0.1:9923",
        "auth": None,
        "workers": {"mails": "shop.mails.send"},
    }

``server`` and ``auth`` are as for ``SyncClient``, and without them it is ``SyncClient()``: that of
the environment or the client file. ``workers`` names a function for each queue that
takes a job; ``manage.py fastjournal_worker mails`` calls it. Tests give ``client``, a function that
returns a client, in place of a server: ``FastjournalDaemon.sync_client``.

management   the command
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import transaction

from fastjournal.client import SyncClient, calls

__all__ = ["client", "configuration", "enqueue"]

_KNOWN = ("server", "auth", "workers", "client")
_clients: list[SyncClient] = []
"""The client of this process, once there is one."""


def configuration() -> dict[str, Any]:
    """Return the setting FASTJOURNAL; without one it is empty.

    Raises:
        ImproperlyConfigured: It has a name that means nothing.
    """
    found: dict[str, Any] = getattr(settings, "FASTJOURNAL", {})
    if unknown := sorted(found.keys() - set(_KNOWN)):
        raise ImproperlyConfigured(
            f"FASTJOURNAL has no {unknown[0]!r}; it has: {', '.join(_KNOWN)}"
        )
    return found


def client() -> SyncClient:
    """Return the client of this process, which its threads share; it connects at its first use."""
    if not _clients:
        found = configuration()
        address = {"address": found["server"]} if "server" in found else {}
        make = found.get("client")
        _clients.append(make() if make else SyncClient(**address, auth=found.get("auth")))
    return _clients[0]


def enqueue(queue: str, value: Any = b"", *, using: str | None = None, **arguments: Any) -> None:
    """Enqueue a job when the present transaction commits; without one, at once.

    A transaction that is rolled back enqueues nothing. Where the daemon is away at the commit, the
    change stands and the call raises.

    Args:
        queue: The queue.
        value: As for ``SyncClient.enqueue``.
        using: Name of the database; None: the default one.
        arguments: As for ``SyncClient.enqueue``, such as ``unique``, ``delay``.

    Raises:
        BadRequestError: An argument that no daemon would take; raised by the call itself.
        CannotConnectError: By the commit: the daemon is away.
    """
    call = calls.enqueue(queue, value, **arguments)
    transaction.on_commit(lambda: client().call(call), using=using)


def _forget_client(*, setting: str, **_: object) -> None:
    if setting == "FASTJOURNAL":
        while _clients:
            _clients.pop().close()


setting_changed.connect(_forget_client)
