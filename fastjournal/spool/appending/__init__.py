"""Append of a record to a slot: its encoding, the file, the shared sync, the quota of the spool.

spool_writer  ``Spool``: threads, signal handlers, forks and the quota around one append
set_request   the frame of a SET, with its default key
slot_files    the slot of now, by name
appendfile    the file that is appended to, and the sync that durable appends share
"""
