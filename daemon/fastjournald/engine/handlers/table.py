"""Handler table: one handler for each function, found by its number.

A handler takes the context, the session, the request and the instant. It returns an error (a code
and optionally a sentence), the empty string for plain success, a reply, bytes that are encoded
already, a scan that is to be carried out, the values that are missing from memory for it, or None
where the request waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from fastjournal.protocol import Function, Reply, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.add_not_truncate import add, not_, truncate
from fastjournald.engine.handlers.bury_kick import bury, kick
from fastjournald.engine.handlers.connection_stats import auth, cancel, nop, quit_, stats
from fastjournald.engine.handlers.link_rename import link, rename
from fastjournald.engine.handlers.lock_unlock import lock, unlock
from fastjournald.engine.handlers.next import next_, next_work, nothing_due
from fastjournald.engine.handlers.pause import pause
from fastjournald.engine.handlers.release_touch import release, touch
from fastjournald.engine.handlers.scan.scan import Scan, get
from fastjournald.engine.handlers.set_delete import delete, set_
from fastjournald.tables.value_cache import Missing

__all__ = ["HANDLERS", "Scan", "next_work", "nothing_due"]

Outcome: TypeAlias = str | Reply | bytes | Scan | Missing | None
Handler: TypeAlias = Callable[[Context, Hashable, Request, int], Outcome]

HANDLERS: dict[int, Handler] = {
    Function.NOP.value: nop,
    Function.QUIT.value: quit_,
    Function.SET.value: set_,
    Function.GET.value: get,
    Function.DELETE.value: delete,
    Function.ADD.value: add,
    Function.NOT.value: not_,
    Function.TRUNCATE.value: truncate,
    Function.LOCK.value: lock,
    Function.UNLOCK.value: unlock,
    Function.RENAME.value: rename,
    Function.NEXT.value: next_,
    Function.LINK.value: link,
    Function.RELEASE.value: release,
    Function.TOUCH.value: touch,
    Function.BURY.value: bury,
    Function.KICK.value: kick,
    Function.STATS.value: stats,
    Function.PAUSE.value: pause,
    Function.AUTH.value: auth,
    Function.CANCEL.value: cancel,
}
"""All others answer ``unknown-function``."""
