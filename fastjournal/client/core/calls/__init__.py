"""One function for each request: it builds the request and knows how to read the reply.

Pure: no socket, no clock. ``SyncClient`` and ``Client`` have a method for each of these and add
nothing but moving the bytes, so the arguments, results and errors that are described here are
theirs. Times are microseconds: an *instant* counts from the Unix epoch, a *duration* is a length.
Keys are ``bytes``, or ``str`` for UTF-8. A request with timestamp 0 is stamped by the client that
sends it.

Every call can raise CannotConnectError (nobody listens, or the connection was lost; see
``maybe_done``) and RefusedError; of the codes of the latter each docstring names those that a
caller may want to act on.
"""

from __future__ import annotations

from fastjournal.client.core.calls.base import (
    Call,
    refusal,
    silence_allowed_s,
)
from fastjournal.client.core.calls.daemon import (
    auth,
    cancellation,
    daemon_stats,
    domain_stats,
    entry_stats,
    nop,
    quit_,
    snapshot,
    stats,
)
from fastjournal.client.core.calls.data import (
    add,
    delete,
    flip,
    get,
    link,
    lock,
    rename,
    set_,
    truncate,
    unlock,
)
from fastjournal.client.core.calls.scans import (
    Scan,
    listening,
    prefix,
    range_,
    regex,
)
from fastjournal.client.core.calls.work import (
    WAIT_WITHOUT_END,
    bury,
    kick,
    kick_domain,
    next_,
    pause,
    release,
    resume,
    touch,
)

__all__ = [
    "WAIT_WITHOUT_END",
    "Call",
    "Scan",
    "add",
    "auth",
    "bury",
    "cancellation",
    "daemon_stats",
    "delete",
    "domain_stats",
    "entry_stats",
    "flip",
    "get",
    "kick",
    "kick_domain",
    "link",
    "listening",
    "lock",
    "next_",
    "nop",
    "pause",
    "prefix",
    "quit_",
    "range_",
    "refusal",
    "regex",
    "release",
    "rename",
    "resume",
    "set_",
    "silence_allowed_s",
    "snapshot",
    "stats",
    "touch",
    "truncate",
    "unlock",
]
