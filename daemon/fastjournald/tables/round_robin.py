"""Round robin between domains, timer queue of the domains, and those that are held. Pure.

A domain with something ready takes turns, unless it is paused or has reached its limit: then it
is held, which costs the others nothing (``tables.held_domains``).

n is the number of domains; every operation is O(log n) unless it says otherwise.
"""

from __future__ import annotations

from fastjournald.tables.domain import Domain, Turns, WakeIndex
from fastjournald.tables.held_domains import HeldDomains
from fastjournald.tables.newly_ready import NewlyReady
from fastjournald.tables.signals import Signals


class RoundRobin:
    """Places of the domains among each other.

    Args:
        signals: Told of work for requests that wait.
    """

    __slots__ = ("held", "newly_ready", "turns", "wakes")

    def __init__(self, signals: Signals) -> None:
        self.turns = Turns()
        """Domains with something ready, but the held ones."""
        self.wakes = WakeIndex()
        """Timer queue: the next delay or lease of each domain, but of the held ones."""
        self.held = HeldDomains()
        self.newly_ready = NewlyReady(signals)

    def begin_turns(self, domain: Domain) -> None:
        """Let a domain take turns in which something became ready, unless it is held."""
        domain.has_ready = True
        if domain.held:
            self.held.take_in(domain)
            return
        self.turns.add(domain)
        if self.newly_ready.wanted:
            self.newly_ready.note(domain)

    def end_turns(self, domain: Domain) -> None:
        """Let a domain take no turns in which nothing is ready any more."""
        domain.has_ready = False
        if domain.held:
            del self.held.ready[domain.name]
            self.held.refresh(domain)
        else:
            self.turns.remove(domain)

    def refresh(self, domain: Domain) -> None:
        """Bring the timers up to date: the next delay or lease of a domain may be another one."""
        if domain.held:
            self.held.refresh(domain)
        elif domain.name:
            self.wakes.refresh(domain)

    def hold_or_free(self, domain: Domain) -> None:
        """Hold a domain back if it must wait, else let it take its turns."""
        must_wait = domain.must_wait()
        if must_wait and domain.held:
            self.held.refresh(domain)
        elif must_wait:
            domain.held = True
            self.wakes.remove(domain)
            if domain.has_ready:
                self.turns.remove(domain)
            self.held.take_in(domain)
        elif domain.held:
            domain.held = False
            self.held.let_go(domain)
            self.wakes.refresh(domain)
            if domain.has_ready:
                self.begin_turns(domain)

    def load(self, domain: Domain) -> None:
        """Give a place to a domain all of which was loaded; it has none but by a hold."""
        if domain.held:
            # while it was loaded, it may have seemed so
            self.held.let_go(domain)
        domain.held = domain.must_wait()
        if domain.held:
            self.held.take_in(domain)
        else:
            self.wakes.refresh(domain)

    def next_at(self, domain: Domain | None) -> int:
        """Return when something of a domain (None: of any) will be due, at the earliest.

        ``NEVER`` where nothing will by time. What is due already does not count. O(1).
        """
        if domain is not None:
            return self.held.due_at(domain.name) if domain.held else domain.next_instant()
        first = self.wakes.first()
        instant = self.held.first_due()
        return instant if first is None else min(first[0], instant)
