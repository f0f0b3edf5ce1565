"""Newly ready domains: those with something ready, noted while requests wait for work. Pure."""

from __future__ import annotations

from collections import deque

from fastjournald.tables.domain import Domain
from fastjournald.tables.signals import READY, Signals


class NewlyReady:
    """Queue of these domains, from the scheduler to the dispatcher.

    Args:
        signals: Told of each.
    """

    __slots__ = ("_signals", "domains", "wanted")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.domains: deque[Domain] = deque()
        self.wanted = False
        """Whether requests wait, which set this: else nobody has to note a domain."""

    def note(self, *domains: Domain) -> None:
        """Note domains; somebody waits."""
        self.domains.extend(domains)
        self._signals.bits |= READY

    def stop(self) -> None:
        """Note nothing any more."""
        self.wanted = False
        self.domains.clear()
