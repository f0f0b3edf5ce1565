"""Methods of both clients: one for each call, with the arguments and the text of that call."""

from __future__ import annotations

from fastjournal.client.core.calls import daemon, data, keys_and_locks, scans, work
from fastjournal.client.core.calls.described_methods import method, scan_method


class CallMethods:
    """Methods that both clients have: one for each call, which has the text of the method.

    A name is that of the protocol's function; the underscore at the end of a call's name keeps it
    from hiding a name of Python.
    """

    set = method(data.set_)
    get = method(data.get)
    delete = method(data.delete)
    add = method(data.add)
    flip = method(data.flip)
    truncate = method(data.truncate)

    rename = method(keys_and_locks.rename)
    link = method(keys_and_locks.link)
    lock = method(keys_and_locks.lock)
    unlock = method(keys_and_locks.unlock)

    range = scan_method(scans.range_)
    prefix = scan_method(scans.prefix)
    regex = scan_method(scans.regex)
    domains = scan_method(scans.domains)

    next = method(work.next_)
    peek = method(work.peek)
    release = method(work.release)
    touch = method(work.touch)
    bury = method(work.bury)
    kick = method(work.kick)
    kick_domain = method(work.kick_domain)
    limit = method(work.limit)
    purge = method(work.purge)
    pause = method(work.pause)
    resume = method(work.resume)

    nop = method(daemon.nop)
    auth = method(daemon.auth)
    stats = method(daemon.stats)
    daemon_stats = method(daemon.daemon_stats)
    domain_stats = method(daemon.domain_stats)
    entry_stats = method(daemon.entry_stats)
    snapshot = method(daemon.snapshot)
    explain = method(daemon.explain)
