"""Queue of changes for a listener: one change a key, the last one. Without IO."""

from __future__ import annotations

from collections.abc import Callable

from fastjournal.client.core.calls.base import refusal
from fastjournal.client.core.results import Change, ChangeKind
from fastjournal.limits import LISTENER_BYTES_MAX, LISTENER_KEYS_MAX
from fastjournal.protocol import ErrorCode, Reply

_KINDS = {"": ChangeKind.SET, ErrorCode.NOT_READABLE: ChangeKind.NOT_READABLE}
"""By the code of the notification; all others mean that the key has no value."""


class ChangeBuffer:
    """Takes notifications and gives changes, in the order in which their keys changed last.

    Args:
        wake: Called when there is something new.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._waiting: dict[bytes, Change] = {}
        self._bytes = 0
        self._missed = False
        self._ended = ""
        """Error with which the daemon ended the subscription; empty: it has not ended."""
        self.lost = False
        """The connection has ended: no changes until the next subscription."""

    def tell(self, reply: Reply | None) -> None:
        """Take a notification; None: the connection is over."""
        if reply is None:
            self.lost = True
        elif reply.error and not reply.pairs:
            self._ended = reply.error
        else:
            for pair in reply.pairs or ():
                kind = _KINDS.get(reply.code, ChangeKind.GONE)
                self._put(Change(kind, pair.key, pair.value_type, pair.value, pair.meta))
        self._wake()

    def __bool__(self) -> bool:
        """Whether ``take`` gives something, or raises."""
        return bool(self._missed or self._waiting or self._ended)

    def subscribed_again(self) -> None:
        """Report first that changes may have been missed."""
        self._missed = True

    def take(self) -> Change | None:
        """Remove and return the change that has waited longest; None: there is none.

        Raises:
            RefusedError: There is none, and the daemon has ended the subscription: ``busy``.
        """
        if self._missed:
            self._missed = False
            return Change(ChangeKind.MISSED)
        if not self._waiting:
            if self._ended:
                raise refusal(self._ended)
            return None
        change = self._waiting.pop(next(iter(self._waiting)))
        self._bytes -= len(change.value)
        return change

    def _put(self, change: Change) -> None:
        earlier = self._waiting.pop(change.key, None)
        self._bytes += len(change.value) - (0 if earlier is None else len(earlier.value))
        self._waiting[change.key] = change
        if len(self._waiting) > LISTENER_KEYS_MAX or self._bytes > LISTENER_BYTES_MAX:
            self._waiting.clear()
            self._bytes = 0
            self._missed = True
