"""Eviction queue of connections: if there are too many, close the oldest idle one of a flood.

To connect costs a client nothing, so silent sockets could keep out all others. A new connection is
always accepted: the one evicted for it is the oldest one of the address that has most of them, so
clients of one address evict each other first. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Client = TypeVar("Client", bound=Hashable)


class EvictionQueue(Generic[Client]):
    """Queue of connections that may be evicted, by address; oldest first."""

    def __init__(self) -> None:
        self._by_origin: dict[str, dict[Client, None]] = {}
        self._origins: dict[int, dict[str, None]] = {}
        """Addresses by how many clients they have."""
        self._most = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def number_of(self, origin: str) -> int:
        """Return how many an address has. O(1)."""
        return len(self._by_origin.get(origin, ()))

    def add(self, origin: str, client: Client) -> None:
        """Add a client that just connected. O(1)."""
        clients = self._by_origin.setdefault(origin, {})
        clients[client] = None
        self._count += 1
        self._move(origin, len(clients) - 1, len(clients))

    def discard(self, origin: str, client: Client) -> bool:
        """Remove a client that has disconnected or must stay now; whether it was there. O(1)."""
        clients = self._by_origin.get(origin)
        if clients is None or client not in clients:
            return False
        del clients[client]
        self._count -= 1
        self._move(origin, len(clients) + 1, len(clients))
        if not clients:
            del self._by_origin[origin]
        return True

    def _move(self, origin: str, before: int, after: int) -> None:
        if before:
            origins = self._origins[before]
            del origins[origin]
            if not origins:
                del self._origins[before]
        if after:
            self._origins.setdefault(after, {})[origin] = None
        if self._most == before and before not in self._origins:
            # one fewer than before, or one more
            self._most = after
        self._most = max(self._most, after)

    def pop_oldest_of(self, origin: str) -> Client:
        """Remove and return the oldest client of an address, which must have some. O(1)."""
        client = next(iter(self._by_origin[origin]))
        self.discard(origin, client)
        return client

    def pop(self) -> Client | None:
        """Remove and return the oldest client of the address with most; None: empty. O(1)."""
        if not self._count:
            return None
        return self.pop_oldest_of(next(iter(self._origins[self._most])))
