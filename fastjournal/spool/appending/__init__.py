"""Append of a record to a slot: its encoding, the file, the shared sync, the quota of the spool.

spool_writer  ``Spool``: threads, signal handlers and forks around one append
set_request   the frame of a SET, with its default key
appendfile, slot_files   the slot that is appended to; slots by name
shared_sync   group commit of durable appends
"""
