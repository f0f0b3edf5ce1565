"""Handlers: one function for each function of the protocol, listed in ``table``. Pure.

set, next, delete, get, ...  one module for each subject; a bulk handler is beside its single one
arguments                    checks of arguments; look-up of an entry that is to be changed
delivery_state               why an entry is not delivered now
scan                         GET of ranges, expressions and cursors

A handler returns its reply, or a cache miss: then it has changed nothing and is called again.
"""
