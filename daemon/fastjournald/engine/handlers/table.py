"""Handler table: one handler for each function that the engine carries out.

A handler takes the context, the session, the request and the instant. It returns an error (a code
and optionally a sentence), the empty string for plain success, a reply, bytes that are encoded
already (a ``DeliveringReply`` where the reply delivers work), a scan that is to be carried out, the
values that are missing from memory for it, or None where the request waits. One that may miss
values takes a last argument more: the reads that failed, where it is asked again after them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from fastjournal import _native
from fastjournal.limits import (
    FRESH_KEYS_MAX,
    GONE_KEYS_MAX,
    KEY_BYTES_MAX,
    WRITTEN_BYTES_MIN,
)
from fastjournal.protocol import Function, Reply, Request
from fastjournald.engine.authorization import Grant
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.add_not_truncate import add, not_, truncate
from fastjournald.engine.handlers.bury_kick import bury, kick
from fastjournald.engine.handlers.connection import auth, cancel, nop, quit_
from fastjournald.engine.handlers.delete import complete, delete
from fastjournald.engine.handlers.domains import domains, limit, pause, purge
from fastjournald.engine.handlers.get import get, peek
from fastjournald.engine.handlers.link_rename import link, rename
from fastjournald.engine.handlers.lock_unlock import lock, unlock
from fastjournald.engine.handlers.next import next_
from fastjournald.engine.handlers.release_touch import release, touch
from fastjournald.engine.handlers.scan.scan import Scan
from fastjournald.engine.handlers.set import TYPE_MAX, set_, set_waiting
from fastjournald.engine.handlers.stats import stats
from fastjournald.engine.undelivered import DeliveringReply
from fastjournald.tables.domain import Domain, Leases
from fastjournald.tables.entry import AccessTimes, Entry, Extra
from fastjournald.tables.key_index import KeyIndex
from fastjournald.tables.key_table import KeyTable, Tombstones
from fastjournald.tables.lease_holders import LeaseHolder, LeaseOperation
from fastjournald.tables.signals import Signals
from fastjournald.tables.sorted_entries import SortedEntries
from fastjournald.tables.value_cache import Missing, Unreadable

Outcome: TypeAlias = str | Reply | bytes | DeliveringReply | Scan | Missing | None
Handler: TypeAlias = Callable[[Context, Hashable, Request, int], Outcome]
ValueHandler: TypeAlias = Callable[[Context, Hashable, Request, int, Unreadable], Outcome]
BulkHandler: TypeAlias = Callable[[Context, list[Request], int, int, int, Grant | None], int]

HANDLERS: dict[int, Handler] = {
    int(Function.NOP): nop,
    int(Function.QUIT): quit_,
    int(Function.AUTH): auth,
    int(Function.CANCEL): cancel,
    int(Function.SET): set_,
    int(Function.GET): get,
    int(Function.PEEK): peek,
    int(Function.DELETE): delete,
    int(Function.ADD): add,
    int(Function.NOT): not_,
    int(Function.TRUNCATE): truncate,
    int(Function.RENAME): rename,
    int(Function.LINK): link,
    int(Function.LOCK): lock,
    int(Function.UNLOCK): unlock,
    int(Function.NEXT): next_,
    int(Function.RELEASE): release,
    int(Function.TOUCH): touch,
    int(Function.BURY): bury,
    int(Function.KICK): kick,
    int(Function.PAUSE): pause,
    int(Function.LIMIT): limit,
    int(Function.PURGE): purge,
    int(Function.DOMAINS): domains,
    int(Function.STATS): stats,
}
"""All others answer ``unknown-function``."""

VALUE_HANDLERS: dict[int, ValueHandler] = {
    int(Function.GET): get,
    int(Function.PEEK): peek,
    int(Function.NEXT): next_,
    int(Function.BURY): bury,
    int(Function.KICK): kick,
}
"""Those handlers that may miss values."""

BULK_HANDLERS: dict[int, BulkHandler] = {
    int(Function.SET): set_waiting,
    int(Function.DELETE): complete,
}
"""Carry out several requests of one function together, from the index ``start`` up to ``stop``, as
far as each does what such a request mostly does, and succeeds; they return how many. They examine
no request behind the first one that they leave. All others go to ``HANDLERS``. The last argument is
the grant that has to cover what they ask for, and has the rights for the first request: they carry
out none that needs other rights than the first one. None: all is covered."""

CLASSES_OF_LEAVES = (
    *(Request, Entry, Extra, AccessTimes, KeyTable, KeyIndex, Tombstones, Signals),
    *(Domain, Leases, LeaseOperation, LeaseHolder, SortedEntries),
)
"""Classes whose slots the native leaves of the bulk handlers use."""

if _native.leaves is not None:
    _native.leaves.bind_bulk(
        {each.__name__: each for each in CLASSES_OF_LEAVES},
        *(KEY_BYTES_MAX, WRITTEN_BYTES_MIN, FRESH_KEYS_MAX, GONE_KEYS_MAX, TYPE_MAX),
        SortedEntries.LOAD,
    )
