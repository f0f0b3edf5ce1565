"""Handlers: one function for each function of the protocol, listed in ``table``. Pure.

set, get, next, delete         a bulk handler is beside the single one
release_touch, bury_kick       the lease of an entry, and dead letters
add_not_truncate, link_rename, lock_unlock   values, keys and locks of an entry
domains, stats, connection     domains; figures; the connection itself
delivery_state                 why an entry is not delivered now
scan                           GET of ranges, expressions and cursors

A handler returns its reply, or a cache miss: then it has changed nothing and is called again.
"""
