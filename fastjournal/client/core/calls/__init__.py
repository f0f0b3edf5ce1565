"""Calls: a function for each request, which builds it and knows how to read the reply.

work, data, scans, daemon   calls about jobs, entries, many entries, the daemon itself
base, reply_readers         the type of a call; replies as results
described_methods           the methods of both clients, made from the calls

Pure: no socket, and no clock but to refuse an expiry in the past and to make a key.
``SyncClient`` and ``Client`` have a method for each of these and add nothing but moving the bytes,
so the arguments, results and errors that are described here are theirs.

A *duration* is a number of seconds or a ``timedelta``, an *instant* a number of seconds
since 1970 or an aware ``datetime``; names that end in ``_us`` are microseconds.
Keys are ``bytes``, or ``str`` for UTF-8. A request with timestamp 0 is stamped by the client that
sends it.

Every call can raise CannotConnectError (nobody listens, or the connection was lost; see
``maybe_done``) and RefusedError; of the codes of the latter each docstring names those that a
caller may want to act on.
"""

from __future__ import annotations

from fastjournal.client.core.calls import daemon, data, scans, work
from fastjournal.client.core.calls.base import Call, PagedCall, refusal, silence_allowed_s
from fastjournal.client.core.calls.daemon import *
from fastjournal.client.core.calls.data import *
from fastjournal.client.core.calls.described_methods import CallMethods
from fastjournal.client.core.calls.scans import *
from fastjournal.client.core.calls.work import *

__all__ = ["Call", "CallMethods", "PagedCall", "refusal", "silence_allowed_s"]
__all__ += daemon.__all__
__all__ += data.__all__
__all__ += scans.__all__
__all__ += work.__all__
